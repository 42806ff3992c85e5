"""A practice-management platform for many firms: their mail, calendars, work and documents, done by jobs."""

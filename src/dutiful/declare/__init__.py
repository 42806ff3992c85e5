"""What an app declares besides its jobs: schedules, breakers, webhooks, alerts, profiles, hooks around attempts."""

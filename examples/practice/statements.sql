-- Every statement is about one firm: `:firm` is set by Firm, never by a caller.

-- name: add_user
INSERT INTO users (firm_id, name, password, is_staff, is_manager)
VALUES (:firm, :name, :password, :is_staff, :is_manager)
ON CONFLICT (name) DO NOTHING;

-- name: user
SELECT firm_id, name, password, is_staff, is_manager FROM users WHERE name = :name;

-- name: add_connection
INSERT INTO connections (id, firm_id) VALUES (:id, :firm) ON CONFLICT DO NOTHING;

-- name: connections
SELECT id FROM connections WHERE firm_id = :firm ORDER BY id;

-- name: connection
SELECT id FROM connections WHERE firm_id = :firm AND id = :id;

-- name: add_calendar
INSERT INTO calendars (id, firm_id) VALUES (:id, :firm) ON CONFLICT DO NOTHING;

-- name: calendar
SELECT id FROM calendars WHERE firm_id = :firm AND id = :id;

-- name: add_client
INSERT INTO clients (firm_id, name, address) VALUES (:firm, :name, :address)
ON CONFLICT (firm_id, address) DO NOTHING;

-- name: client_at
SELECT id, name FROM clients WHERE firm_id = :firm AND address = :address;

-- name: client
SELECT id, name, address FROM clients WHERE firm_id = :firm AND id = :id;

-- name: add_message
INSERT INTO messages (firm_id, connection_id, external_id, maildir_key)
VALUES (:firm, :connection_id, :external_id, :maildir_key)
ON CONFLICT DO NOTHING;

-- name: message
SELECT id, maildir_key, sender, subject, client_id
  FROM messages
 WHERE firm_id = :firm AND connection_id = :connection_id AND external_id = :external_id;

-- name: read_message
UPDATE messages SET sender = :sender, subject = :subject, client_id = :client_id WHERE firm_id = :firm AND id = :id;

-- name: messages
SELECT m.external_id, m.sender, m.subject, c.name AS client
  FROM messages m LEFT JOIN clients c ON c.id = m.client_id
 WHERE m.firm_id = :firm
 ORDER BY m.external_id;

-- name: put_appointment
INSERT INTO appointments (firm_id, calendar_id, uid, starts_at, title, pushed)
VALUES (:firm, :calendar_id, :uid, :starts_at, :title, :pushed)
ON CONFLICT (firm_id, calendar_id, uid) DO UPDATE SET starts_at = excluded.starts_at, title = excluded.title;

-- name: appointment
SELECT id, calendar_id, uid, starts_at, title FROM appointments WHERE firm_id = :firm AND id = :id;

-- name: appointments
SELECT id, uid, starts_at, title, pushed FROM appointments WHERE firm_id = :firm ORDER BY uid;

-- name: appointment_pushed
UPDATE appointments SET pushed = 1 WHERE firm_id = :firm AND id = :id;

-- name: add_engagement
INSERT INTO engagements (firm_id, title, starts_on) VALUES (:firm, :title, :starts_on);

-- name: engagement
SELECT id, title, starts_on FROM engagements WHERE firm_id = :firm AND id = :id;

-- name: add_period
INSERT INTO periods (firm_id, engagement_id, month) VALUES (:firm, :engagement_id, :month) ON CONFLICT DO NOTHING;

-- name: periods
SELECT id, month FROM periods WHERE firm_id = :firm AND engagement_id = :engagement_id ORDER BY month;

-- name: period
SELECT id FROM periods WHERE firm_id = :firm AND id = :id;

-- name: add_work
INSERT INTO works (firm_id, period_id, title)
SELECT :firm, p.id, e.title || ' ' || p.month
  FROM periods p JOIN engagements e ON e.id = p.engagement_id
 WHERE p.firm_id = :firm AND p.id = :period_id
ON CONFLICT DO NOTHING;

-- name: works
SELECT id, title, closed_on FROM works WHERE firm_id = :firm ORDER BY id;

-- name: close_work
UPDATE works SET closed_on = :closed_on WHERE firm_id = :firm AND id = :id;

-- name: closed_works
SELECT id, period_id, title, closed_on FROM works WHERE firm_id = :firm AND closed_on < :before ORDER BY id;

-- name: remove_closed_works
DELETE FROM works
 WHERE firm_id = :firm AND closed_on < :before AND id IN (SELECT value FROM json_each(:ids));

-- name: add_execution
INSERT INTO executions (firm_id, client_id) VALUES (:firm, :client_id);

-- name: execution
SELECT id, client_id, done FROM executions WHERE firm_id = :firm AND id = :id;

-- name: step_done
UPDATE executions SET done = max(done, :step + 1) WHERE firm_id = :firm AND id = :id;

-- name: add_document
INSERT INTO documents (firm_id, name) VALUES (:firm, :name);

-- name: document
SELECT id, name, state, sort FROM documents WHERE firm_id = :firm AND id = :id;

-- name: documents
SELECT id, name, state, sort FROM documents WHERE firm_id = :firm ORDER BY id;

-- name: document_scanned
UPDATE documents SET state = :state WHERE firm_id = :firm AND id = :id;

-- name: document_classified
UPDATE documents SET sort = :sort WHERE firm_id = :firm AND id = :id;

-- name: add_notification
INSERT INTO notifications (firm_id, address, subject, body) VALUES (:firm, :address, :subject, :body)
ON CONFLICT DO NOTHING;

-- name: notification_of
SELECT id FROM notifications WHERE firm_id = :firm AND address = :address AND subject = :subject;

-- name: notification
SELECT id, address, subject, body, sent FROM notifications WHERE firm_id = :firm AND id = :id;

-- name: notification_sent
UPDATE notifications SET sent = 1 WHERE firm_id = :firm AND id = :id;

-- name: add_to_inbox
INSERT INTO inbox (firm_id, notification_id, body)
SELECT :firm, id, subject || ': ' || body FROM notifications WHERE firm_id = :firm AND id = :id
ON CONFLICT DO NOTHING;

-- name: inbox
SELECT id, body FROM inbox WHERE firm_id = :firm ORDER BY id;

-- name: add_session
INSERT INTO sessions (firm_id, expires_at) VALUES (:firm, :expires_at);

-- name: expire_sessions
DELETE FROM sessions WHERE firm_id = :firm AND expires_at < :before;

-- name: sessions
SELECT id, expires_at FROM sessions WHERE firm_id = :firm ORDER BY id;

-- name: add_export
INSERT INTO exports (firm_id) VALUES (:firm);

-- name: export
SELECT id, file, sha256 FROM exports WHERE firm_id = :firm AND id = :id;

-- name: export_made
UPDATE exports SET file = :file, sha256 = :sha256 WHERE firm_id = :firm AND id = :id AND sha256 IS NULL;

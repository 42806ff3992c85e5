-- name: add_site
INSERT INTO site (lipas_id, name, type, east, north) VALUES (:lipas_id, :name, :type, :east, :north);

-- name: site
SELECT lipas_id, name, type, east, north, elevation, diversity, population FROM site WHERE lipas_id = :lipas_id;

-- name: sites
SELECT lipas_id, name, type, east, north, elevation, diversity, population FROM site ORDER BY lipas_id;

-- name: change_site
UPDATE site SET name = :name, type = :type, east = :east, north = :north WHERE lipas_id = :lipas_id;

-- name: set_diversity
UPDATE site SET diversity = :diversity, population = :population WHERE lipas_id = :lipas_id;

-- name: set_elevation
UPDATE site SET elevation = :elevation WHERE lipas_id = :lipas_id;

-- name: add_reminder
INSERT INTO reminder (lipas_id, address, due_at) VALUES (:lipas_id, :address, :due_at);

-- name: overdue
SELECT r.id, r.address, s.name
FROM reminder r JOIN site s ON s.lipas_id = r.lipas_id
WHERE r.produced_at IS NULL AND r.due_at <= :now
ORDER BY r.id;

-- name: produced
UPDATE reminder SET produced_at = :now WHERE id = :id AND produced_at IS NULL;

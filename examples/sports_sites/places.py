"""Slow jobs: the diversity of sports around a site, and its elevation."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from dutiful import Context, Inject, Rules
from examples.sports_sites.diversity import diversity
from examples.sports_sites.services import Search
from examples.sports_sites.sites import Site, Sites

log = logging.getLogger("register")
SITE = Rules(required={"lipas-id": int})  # not a valid parameter name: handlers read it from ctx.payload


async def analysis(ctx: Context, db: Sites = Inject("db"), search: Search = Inject("search")) -> dict[str, Any]:
    """Jobs of this kind wait while the breaker of the population grid is open; no attempt is counted."""
    site = db.get(ctx.payload["lipas-id"])
    log.info("analysing the diversity around site %d", site.lipas_id)
    found = diversity(site, await search.cells(site), db.all())
    db.set_diversity(site.lipas_id, found.index, found.population)
    return asdict(found)


async def elevation(
    ctx: Context, db: Sites = Inject("db"), height_of: Callable[[Site], Awaitable[float]] = Inject("height_of")
) -> dict[str, float]:
    site = db.get(ctx.payload["lipas-id"])
    log.info("looking up the elevation of site %d", site.lipas_id)
    found = await height_of(site)
    db.set_elevation(site.lipas_id, found)
    return {"elevation": found}

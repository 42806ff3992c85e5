"""Serves the live page until Ctrl-C."""

import asyncio
from datetime import timedelta
from pathlib import Path

from rich.console import Console

from examples.media_pipeline.media import sample_files
from examples.media_pipeline.origin import Origin
from examples.media_pipeline.service import media_queue
from examples.media_pipeline.site import site
from examples.media_pipeline.story import NEW, OLD
from examples.serving import for_ever, serving


async def serve(console: Console, folder: Path, port: int) -> None:
    origin = Origin(await asyncio.to_thread(sample_files, 1_200), OLD, rate=6e5)  # slow enough to watch
    async with serving(origin.asgi) as url:
        queue = media_queue(
            folder,
            webhook_url=f"{url}/hooks",
            webhook_secrets=(NEW, OLD),
            stale_after=timedelta(minutes=10),
            delete_after=timedelta(minutes=20),
        )
        await queue.app.make_store().migrate()
        async with queue, serving(site(queue, url, [*origin.files, "nowhere.ppm"]), port) as page:
            console.print(f"[bold]{page}[/] shows it live; Ctrl-C ends it.")
            await for_ever()

"""Makes the tables of Dutiful and of the host in an empty database."""

from dutiful import Dutiful
from examples.docverse.database import FOLDER
from examples.schemas import connect


async def install(app: Dutiful, url: str) -> None:
    await app.make_store().migrate()
    connection = await connect(url)
    try:
        async with connection.transaction():
            for file in ("schema.sql", "queue_job.sql"):
                await connection.execute((FOLDER / file).read_text())
    finally:
        await connection.close()

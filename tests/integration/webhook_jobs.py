"""A job for workers that are killed before their message is through."""

from dutiful import Dutiful

app = Dutiful()


@app.job
async def greet(name: str) -> str:
    return f"Hello {name}"

"""A job for workers that are killed before their webhook is delivered."""

from dutiful import Dutiful

app = Dutiful()


@app.job
async def greet(name: str) -> str:
    return f"Hello {name}"

"""The application of the image: put your own here, or build with `--build-arg APP=path/to/yours`."""

from dutiful import Dutiful

app = Dutiful()


@app.job
async def greet(name: str = "world") -> str:
    return f"Hello, {name}"

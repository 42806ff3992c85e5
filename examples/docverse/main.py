"""The app of all processes: `dutiful worker examples.docverse.main:app`; settings are in the environment."""

import os

from examples.docverse.config import Config
from examples.docverse.jobs import docverse_app

app = docverse_app(Config.read(os.environ))

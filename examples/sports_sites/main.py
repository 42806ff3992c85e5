"""The app of all processes: `dutiful worker examples.sports_sites.main:app`, and `dutiful server …`."""

import os

from examples.sports_sites.config import Config
from examples.sports_sites.service import sports_app

app = sports_app(Config.read(os.environ))

"""The app of all processes: `dutiful worker examples.sports_sites.main:app`, and `dutiful server …`.

Its web application is for any ASGI server: `uvicorn examples.sports_sites.main:site`. `python -m examples.sports_sites
--world` serves what they talk to.
"""

import os

from examples.sports_sites.config import Config
from examples.sports_sites.sample_data import fill
from examples.sports_sites.service import sports_app
from examples.sports_sites.site import sports_site

config = Config.read(os.environ)
fill(config.folder)
app = sports_app(config)
site = sports_site(app, config)

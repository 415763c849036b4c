"""The heat study's server, which tells the benchmark when it trains."""

from server import HeatServer

from benchmarks.restarted.announcer import Announcer


class TimedHeatServer(HeatServer):
    """Its file lies beside the study.json of the heat study."""

    def configure_callbacks(self):
        return [Announcer()]

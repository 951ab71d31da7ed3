"""What a person sees of a run: progress while it goes on, metrics, the summary at its end, and its timeline."""

from shoal.report.metrics import Metrics
from shoal.report.progress import Display, JsonLines, Live, Plain, Progress, display
from shoal.report.summary import Summary, summarize
from shoal.report.timeline import write_timeline

__all__ = [
    "Display",
    "JsonLines",
    "Live",
    "Metrics",
    "Plain",
    "Progress",
    "Summary",
    "display",
    "summarize",
    "write_timeline",
]

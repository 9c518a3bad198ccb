"""Load a buffer into Delta Lake tables exactly once, on Spark.

    Loader, LoaderConfig, Progress   the pipeline, its settings, what each commit did
    spark_session                    a SparkSession with Delta, tuned for its size

Errors are in `buffer_delta.errors`. Importing this package does not import Spark; using `Loader` does.
"""

from typing import TYPE_CHECKING, Any

from buffer_delta.config import LoaderConfig
from buffer_delta.load.progress import Progress

if TYPE_CHECKING:
    from buffer_delta.load.loader import Loader
    from buffer_delta.spark.session import spark_session

__all__ = ["Loader", "LoaderConfig", "Progress", "spark_session"]

_ON_SPARK = {"Loader": "buffer_delta.load.loader", "spark_session": "buffer_delta.spark.session"}


def __getattr__(name: str) -> Any:
    if name not in _ON_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_ON_SPARK[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "delta", "py4j"):
            raise
        raise ImportError(f'{name} needs Spark: pip install "buffer-delta[spark]"', name=error.name) from error

"""A Gaussian process with the min-max kernel (Ralaivola 2005) on counts of structures."""

from typing import TYPE_CHECKING

from graphxai.runtime.lazy import lazily

if TYPE_CHECKING:  # the list of public names
    from .inputs import ProcessBatch as ProcessBatch
    from .model import CarriedCounts as CarriedCounts
    from .model import KernelProcess as KernelProcess
    from .model import ProcessConfig as ProcessConfig
    from .sum import SummedModel as SummedModel
    from .sum import load_process as load_process
    from .sum import load_sum as load_sum
    from .sum import mean_of as mean_of
    from .sum import save_process as save_process
    from .sum import save_sum as save_sum
    from .sum import with_counts as with_counts

__getattr__, __dir__, __all__ = lazily(__name__, __file__)

"""The resource's side of fencing: a guard that refuses superseded tokens, and stores for the highest token.

| fence store | stores the token in | atomic with |
|---|---|---|
| `MemoryFenceStore` | this process | nothing else |
| `SqlFenceStore` | a row of a SQL table | the transaction that writes the data |
| `GcsFenceStore` | the metadata of a Cloud Storage object | the conditional write of that object |

Must not know any lock store.
"""

from lockstead.fencing.guard import FenceGuard, FenceStore, MemoryFenceStore
from lockstead.fencing.object import GcsFenceStore
from lockstead.fencing.row import SqlFenceStore

__all__ = ["FenceGuard", "FenceStore", "GcsFenceStore", "MemoryFenceStore", "SqlFenceStore"]

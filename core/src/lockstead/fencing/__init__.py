"""The resource's side of fencing: a guard that refuses superseded tokens, and the places where it remembers them.

| floor | remembers in | one step with |
|---|---|---|
| `MemoryFloor` | this process | nothing else |
| `RowFloor` | a row of a SQL table | the transaction that writes the data |
| `ObjectFloor` | the metadata of a Cloud Storage object | the conditional write of that object |

Must not know any lock store.
"""

from lockstead.fencing.guard import FenceGuard, Floor, MemoryFloor
from lockstead.fencing.object import ObjectFloor
from lockstead.fencing.row import RowFloor

__all__ = ["FenceGuard", "Floor", "MemoryFloor", "ObjectFloor", "RowFloor"]

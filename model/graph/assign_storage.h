#pragma once

#include <cstdint>
#include <vector>

#include "model/graph/graph.h"

namespace shoal::graph {

// A block of memory that one or more values of a graph share.
struct Storage {
  Form form = Form::kFloat;
  RowSet rows = RowSet::kTokens;
  int64_t width = 0;
  int64_t parts = 1;
  int first_node = 0;  // the first that writes it
  int last_node = 0;   // the last that reads or writes it
};

struct Place {
  int storage = -1;
  int64_t column = 0;
  int64_t first_part = 0;  // of a gathered value's parts, where this shard's begin
};

struct StorageAssignment {
  std::vector<Storage> storages;
  std::vector<Place> places;  // of the values
};

// Decides which values share memory:
// - a slice lies inside its input; a rotation and a head norm take the place of theirs;
// - gate and up lie side by side, whether one product writes them or two;
// - a shard's partial sums lie where AllGather puts all shards';
// - the sum of an add takes the place of its residual if nobody reads that any more.
// What GatherRows reads lives to the end, so that the logits of other rows can be had later.
// CHECKs that what is overwritten in place has no other reader.
StorageAssignment AssignStorage(const Graph& graph);

}  // namespace shoal::graph

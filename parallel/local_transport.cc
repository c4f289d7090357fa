#include "parallel/local_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "parallel/mapping.h"
#include "parallel/region_transport.h"

namespace shoal::parallel {
namespace {

class LocalOwner final : public RegionOwner {
 public:
  LocalOwner(std::shared_ptr<Mapping> memory, SharedRegion region)
      : memory_(std::move(memory)), region_(region) {}
  SharedRegion region() const override { return region_; }

 private:
  const std::shared_ptr<Mapping> memory_;  // owned by the transports of all ranks
  const SharedRegion region_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Transport>>> NewLocalTransports(
    const LocalOptions& options) {
  const RegionShape shape{options.size, options.slot_bytes, options.slot_bytes};
  SHOAL_RETURN_IF_ERROR(SharedRegion::CheckShape(shape));
  SHOAL_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Create(-1, SharedRegion::NumBytes(shape)));
  auto memory = std::make_shared<Mapping>(std::move(mapping));
  const SharedRegion region = SharedRegion::Create(memory->data(), shape);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < options.size; ++rank) {
    transports.push_back(std::make_unique<RegionTransport>(
        RegionTransport::Options{"local", rank, options.op_timeout, options.allow_spin},
        std::make_unique<LocalOwner>(memory, region)));
  }
  return transports;
}

}  // namespace shoal::parallel

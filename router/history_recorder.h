#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "shoal/history/v1/history.pb.h"

namespace shoal::router {

// The first bytes of a recorded history, see history.proto, and the Header::format that this
// version writes and reads.
inline constexpr char kHistoryMagic[] = "SHOALHST";
inline constexpr uint32_t kHistoryFormat = 1;

// Writes a history to a file that only its owner can read. What Flush has passed on outlives the
// process. At `limit_bytes`, or when the disk is full, recording stops with a line in the log, and
// the file ends there. One thread.
class HistoryRecorder {
 public:
  // Replaces the file. Errors: UNAVAILABLE: it cannot be created.
  static absl::StatusOr<std::unique_ptr<HistoryRecorder>> Create(const std::string& path,
                                                                 uint64_t limit_bytes,
                                                                 const history::v1::Header& header);

  void Write(const history::v1::Record& record) { WriteMessage(record); }
  void Flush();

 private:
  HistoryRecorder(std::string path, uint64_t limit_bytes)
      : path_(std::move(path)), limit_bytes_(limit_bytes) {}
  void WriteMessage(const google::protobuf::MessageLite& message);
  void StopIfBroken();

  const std::string path_;
  const uint64_t limit_bytes_;
  std::ofstream file_;
  uint64_t num_bytes_ = 0;
  bool has_stopped_ = false;
  std::string buffer_;  // of one message
};

}  // namespace shoal::router

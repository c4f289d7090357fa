#include "router/history_recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "glog/logging.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/util/delimited_message_util.h"

namespace shoal::router {

absl::StatusOr<std::unique_ptr<HistoryRecorder>> HistoryRecorder::Create(
    const std::string& path, uint64_t limit_bytes, const history::v1::Header& header) {
  auto recorder = absl::WrapUnique(new HistoryRecorder(path, limit_bytes));
  // Prompts are nobody else's business, also where the file was there before.
  const base::UniqueFd fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!fd.valid() || fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot record to ", path, ": ", strerror(errno)));
  }
  recorder->file_.open(path, std::ios::binary | std::ios::trunc);
  recorder->file_.write(kHistoryMagic, sizeof(kHistoryMagic) - 1);
  recorder->num_bytes_ = sizeof(kHistoryMagic) - 1;
  recorder->WriteMessage(header);
  recorder->Flush();
  if (!recorder->file_) {
    return absl::UnavailableError(absl::StrCat("cannot record to ", path, ": ", strerror(errno)));
  }
  return recorder;
}

void HistoryRecorder::WriteMessage(const google::protobuf::MessageLite& message) {
  if (has_stopped_) return;
  buffer_.clear();
  {
    google::protobuf::io::StringOutputStream stream(&buffer_);
    google::protobuf::util::SerializeDelimitedToZeroCopyStream(message, &stream);
  }
  if (num_bytes_ + buffer_.size() > limit_bytes_) {
    LOG(WARNING) << "recording to " << path_ << " ends at --record-limit, " << limit_bytes_
                 << " bytes";
    Flush();
    has_stopped_ = true;
    return;
  }
  file_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  num_bytes_ += buffer_.size();
  StopIfBroken();
}

void HistoryRecorder::Flush() {
  if (has_stopped_) return;
  file_.flush();
  StopIfBroken();
}

void HistoryRecorder::StopIfBroken() {
  if (file_ || has_stopped_) return;
  LOG(WARNING) << "recording to " << path_ << " ends: " << strerror(errno);
  has_stopped_ = true;
}

}  // namespace shoal::router

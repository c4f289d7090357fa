#include "router/replay.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/io/zero_copy_stream_impl.h"
#include "google/protobuf/util/delimited_message_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "router/control/group_control.h"
#include "router/history_codec.h"
#include "router/history_recorder.h"

namespace shoal::router {
namespace {

namespace wire = history::v1;
using google::protobuf::util::MessageDifferencer;

// The first field in which two plans differ, or nothing.
std::string FindDifference(const wire::Planning& recorded, const wire::Planning& replayed) {
  if (recorded.has_plan() != replayed.has_plan()) {
    return recorded.has_plan()
               ? absl::StrCat("step ", recorded.plan().step(), " is not planned any more")
               : absl::StrCat("step ", replayed.plan().step(), " is planned too early");
  }
  std::string differences;
  MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&differences);
  if (differencer.Compare(recorded, replayed)) return "";
  const std::string first = differences.substr(0, differences.find('\n'));
  return absl::StrCat("step ", recorded.plan().step(), ": ", first, " (recorded -> replayed)");
}

class Player {
 public:
  explicit Player(const GroupControlOptions& options) : control_(options) {}

  // Errors: INVALID_ARGUMENT: no router writes such a record.
  absl::Status Play(const wire::Record& record, ReplayResult* result);

 private:
  void Submit(absl::Time now, const wire::Submission& submission, ReplayResult* result);
  void Plan(absl::Time now, const wire::Planning& recorded, ReplayResult* result);

  GroupControl control_;
};

absl::Status Player::Play(const wire::Record& record, ReplayResult* result) {
  const absl::Time now = absl::FromUnixNanos(record.time_ns());
  switch (record.call_case()) {
    case wire::Record::kStart:
      control_.Start(now);
      break;
    case wire::Record::kSubmission:
      Submit(now, record.submission(), result);
      break;
    case wire::Record::kCancel:
      control_.Cancel(now, record.cancel().id(), record.cancel().reason());
      break;
    case wire::Record::kFinish:
      control_.Finish(record.finish());
      break;
    case wire::Record::kFailAll:
      control_.FailAll(now, FromProto(record.fail_all()));
      break;
    case wire::Record::kRankEvent: {
      SHOAL_ASSIGN_OR_RETURN(const GroupEvent event,
                             FromProto(record.rank_event(), control_.group().num_ranks()));
      control_.OnGroupEvent(now, event);
      break;
    }
    case wire::Record::kTimer:
      control_.OnTimer(now);
      break;
    case wire::Record::kPlanning:
      Plan(now, record.planning(), result);
      break;
    case wire::Record::CALL_NOT_SET:
      return absl::InvalidArgumentError("a record of an unknown call");
  }
  control_.TakeActions();
  control_.TakeEvents();
  return absl::OkStatus();
}

void Player::Submit(absl::Time now, const wire::Submission& submission, ReplayResult* result) {
  std::vector<Request> sequences;
  for (const wire::Sequence& sequence : submission.sequences()) {
    sequences.push_back(FromProto(sequence));
  }
  ++result->num_requests;
  const absl::Status status = control_.Submit(now, std::move(sequences));
  if (status.raw_code() == submission.code() || submission.sequences_size() == 0) return;
  result->difference = absl::StrCat("request ", submission.sequences(0).id(), " is answered ",
                                    status.ToString(), ", not with code ", submission.code());
}

void Player::Plan(absl::Time now, const wire::Planning& recorded, ReplayResult* result) {
  wire::Planning replayed;
  if (control_.Plan(now)) {
    ++result->num_plans;
    for (const ControlAction& action : control_.TakeActions()) {
      if (const auto* step = std::get_if<SendStep>(&action)) ToProto(*step, &replayed);
    }
  }
  result->difference = FindDifference(recorded, replayed);
}

// What follows the magic.
absl::StatusOr<wire::Header> ReadHeader(const std::string& path,
                                        google::protobuf::io::ZeroCopyInputStream* stream) {
  wire::Header header;
  bool clean_eof = false;
  if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&header, stream, &clean_eof)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " ends in its header: nothing to replay"));
  }
  if (header.format() != kHistoryFormat) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has format ", header.format(),
                                                   " (shoal ", header.version(),
                                                   "), this version reads ", kHistoryFormat));
  }
  return header;
}

}  // namespace

absl::StatusOr<ReplayResult> Replay(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", strerror(errno)));
  char magic[sizeof(kHistoryMagic) - 1] = {};
  file.read(magic, sizeof(magic));
  if (!file || std::memcmp(magic, kHistoryMagic, sizeof(magic)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no history that shoal-router --record has written"));
  }
  google::protobuf::io::IstreamInputStream stream(&file);
  SHOAL_ASSIGN_OR_RETURN(const wire::Header header, ReadHeader(path, &stream));
  SHOAL_ASSIGN_OR_RETURN(const GroupControlOptions options, FromProto(header));
  Player player(options);
  ReplayResult result;
  wire::Record record;
  while (result.difference.empty()) {
    bool clean_eof = false;
    record.Clear();
    if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&record, &stream, &clean_eof)) {
      result.is_truncated = !clean_eof;
      break;
    }
    SHOAL_RETURN_IF_ERROR(player.Play(record, &result));
    ++result.num_records;
  }
  return result;
}

}  // namespace shoal::router

#include "cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "glog/logging.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"

namespace shoal::cli {
namespace {

// Bytes of the UTF-8 character at the start of `text`; 0 if there is none that is valid.
size_t CharacterSize(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t size = lead < 0x80                   ? 1
                      : lead >= 0xC2 && lead < 0xE0 ? 2
                      : lead >= 0xE0 && lead < 0xF0 ? 3
                      : lead >= 0xF0 && lead < 0xF5 ? 4
                                                    : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (size == 3 && lead == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (size == 3 && lead == 0xED && byte(1) > 0x9F) return 0;  // surrogates
  if (size == 4 && lead == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (size == 4 && lead == 0xF4 && byte(1) > 0x8F) return 0;  // above U+10FFFF
  return size;
}

// Columns of a terminal, to a good approximation.
size_t Width(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

Table::Table(std::vector<std::string> headers) { rows_.push_back(std::move(headers)); }

void Table::AddRow(std::vector<std::string> cells) {
  CHECK_EQ(cells.size(), rows_[0].size());
  for (std::string& cell : cells) {
    std::replace_if(
        cell.begin(), cell.end(), [](char c) { return absl::ascii_iscntrl(c); }, '?');
  }
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths(rows_[0].size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - Width(row[i]) + 2, ' '));
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  CHECK(status.ok()) << status.ToString();
  return json;
}

std::string ErrorJson(absl::string_view code, absl::string_view message) {
  google::protobuf::Struct error;
  (*error.mutable_fields())["code"].set_string_value(std::string(code));
  (*error.mutable_fields())["message"].set_string_value(EscapeBytes(message));
  google::protobuf::Struct object;
  *(*object.mutable_fields())["error"].mutable_struct_value() = std::move(error);
  return ToJson(object);
}

std::string FormatBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f B", bytes)
                   : absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string WithoutControls(absl::string_view text) {
  std::string clean;
  for (const char c : text) {
    if (c == '\n' || c == '\t' || !absl::ascii_iscntrl(c)) clean.push_back(c);
  }
  return clean;
}

std::string EscapeBytes(absl::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t size = CharacterSize(bytes);
    if (size == 0) {
      absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned char>(bytes[0]));
    } else {
      absl::StrAppend(&text, bytes.substr(0, size));
    }
    bytes.remove_prefix(std::max<size_t>(size, 1));
  }
  return text;
}

bool MayColor(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  if (no_color != nullptr && *no_color != '\0') return false;
  return isatty(fd) == 1 && (term == nullptr || absl::string_view(term) != "dumb");
}

}  // namespace shoal::cli

#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace shoal::cli {

enum class Format { kTable, kJson };

// Columns as wide as their widest cell, headers in capitals. For people: the layout may change.
class Table {
 public:
  explicit Table(std::vector<std::string> headers);
  // REQUIRES: as many cells as headers. Control characters in a cell become '?'.
  void AddRow(std::vector<std::string> cells);
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the headers first
};

// The canonical JSON of protobuf (camelCase, 64-bit numbers as strings), with every field that has
// no presence, so that scripts find them. Indented; ends with a newline.
std::string ToJson(const google::protobuf::Message& message);

// {"error": {"code": "UNAVAILABLE", "message": "..."}}, what `-o json` prints when a call fails.
std::string ErrorJson(absl::string_view code, absl::string_view message);

// `json` with every line but the first moved right by one, without its last newline: to stand in
// another object.
std::string NestJson(absl::string_view json);

// "512 B", "1.5 GiB".
std::string FormatBytes(double bytes);

// `text` without what would control a terminal: control characters other than newline and tab.
std::string WithoutControls(absl::string_view text);

// Text in UTF-8, or with its invalid bytes as \xNN.
std::string EscapeBytes(absl::string_view bytes);

// `text` with \n, \t, \r and \\ made the characters they stand for, and all else left as it is:
// what a shell does not do for an argument.
std::string Unescape(absl::string_view text);

// A terminal, and neither NO_COLOR nor TERM=dumb.
bool MayColor(int fd);

}  // namespace shoal::cli

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/text/jinja_string.h"

namespace shoal::text::jinja {

class Value;
class Dict;
struct Namespace;
struct Loop;
struct Function;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kLoop,
  kFunction
};

// A Python value, 16 bytes, copied freely. What it points to belongs to the Context (or to the
// parsed template) and lives as long as the rendering. Lists, tuples, strings and dicts never
// change once made, as in jinja2's immutable sandbox; a Namespace does, and may hold itself.
class Value {
 public:
  Value() : kind_(Kind::kUndefined), string_(nullptr) {}
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool v);
  static Value Int(int64_t v);
  static Value Float(double v);
  static Value String(const MarkedString* v);
  static Value List(const std::vector<Value>* v);
  static Value Tuple(const std::vector<Value>* v);
  static Value FromDict(const Dict* v);
  static Value FromNamespace(Namespace* v);
  static Value FromLoop(Loop* v);
  static Value FromFunction(const Function* v);
  // `why` is the error when the value is used for more than printing; null: a plain one.
  static Value Undefined(const MarkedString* why);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_string() const { return is(Kind::kString); }
  bool is_sequence() const { return is(Kind::kList) || is(Kind::kTuple); }
  bool is_integral() const { return is(Kind::kInt) || is(Kind::kBool); }  // Python: bool is an int
  bool is_number() const { return is_integral() || is(Kind::kFloat); }

  // REQUIRES the kind that the name says.
  bool AsBool() const { return bool_; }
  int64_t AsInt() const { return is(Kind::kBool) ? int64_t{bool_} : int_; }
  double AsDouble() const { return is(Kind::kFloat) ? float_ : static_cast<double>(AsInt()); }
  const MarkedString& AsString() const { return *string_; }
  absl::string_view bytes() const { return string_->bytes(); }
  absl::Span<const Value> items() const { return *items_; }  // of a list or tuple
  const Dict& AsDict() const { return *dict_; }
  Namespace& AsNamespace() const { return *namespace_; }
  Loop& AsLoop() const { return *loop_; }
  const Function& AsFunction() const { return *function_; }

  // The error that using this undefined value is: as made (may be null), and as a message.
  const MarkedString* why() const { return string_; }
  std::string WhyUndefined() const;

  bool IsTrue() const;

  // Same object in Python's sense: equal scalars, the same container.
  bool IsSameAs(const Value& other) const;

  // As in Python's error messages: "dict object", "str object", "None".
  absl::string_view TypeName() const;

 private:
  explicit Value(Kind kind) : kind_(kind), string_(nullptr) {}

  Kind kind_;
  union {
    bool bool_;
    int64_t int_;
    double float_;
    const MarkedString* string_;
    const std::vector<Value>* items_;
    const Dict* dict_;
    Namespace* namespace_;
    Loop* loop_;
    const Function* function_;
  };
};

// Insertion-ordered. String keys are hashed once there are many; other keys are few, since only a
// template's own text can make them.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  absl::Span<const Entry> entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  size_t MemoryBytes() const { return sizeof(*this) + entries_.size() * (sizeof(Entry) + 32); }

  // Null if absent.
  const Value* Find(absl::string_view key) const;

  // Replaces the value of an equal string key, which keeps its place. The bytes of `key` must
  // outlive the Dict.
  void Set(const Value& key, const Value& value);

  // REQUIRES that `key` is no string, and `index` < size().
  void Add(const Value& key, const Value& value) { entries_.emplace_back(key, value); }
  void Replace(size_t index, const Value& value) { entries_[index].second = value; }

 private:
  static constexpr size_t kMinIndexed = 16;

  size_t FindIndex(absl::string_view key) const;  // size() if absent

  std::vector<Entry> entries_;
  absl::flat_hash_map<absl::string_view, size_t> index_;  // of string keys, from kMinIndexed on
};

struct Namespace {
  Dict attributes;
};

// The variable `loop`.
struct Loop {
  absl::Span<const Value> items;
  size_t index0 = 0;
  bool has_changed_value = false;
  std::vector<Value> changed_value;  // last arguments of loop.changed()
};

}  // namespace shoal::text::jinja

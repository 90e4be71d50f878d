// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/internal/hostlist.h"

#include <charconv>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/cluster/cluster_spec.h"

namespace tutti::internal {
namespace {

constexpr size_t kLongestHost = 253;  // of a name in the DNS
constexpr size_t kMostDigits = 9;

std::optional<int> digits(std::string_view text) {
  int value = 0;
  if (text.empty() || text.size() > kMostDigits || text[0] == '-') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Calls use(part) for each part of `text` between separators.
template <class Use>
void for_each_part(std::string_view text, char separator, const Use& use) {
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] != separator) continue;
    use(text.substr(begin, i - begin));
    begin = i + 1;
  }
}

class HostlistReader {
 public:
  HostlistReader(std::string_view who, std::string_view text) : who_(who), text_(text) {}

  std::vector<std::string> read() {
    while (true) {
      read_item();
      if (at_ == text_.size()) return std::move(hosts_);
      ++at_;  // the comma
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument,
                message(who_, ": ", in_quotes(text_), " is not a list of hosts: ", what,
                        ". Examples of lists: \"n[1-3,7]\", \"rack[0-1]node[01-16]\", \"a,b,c\"."));
  }

  void read_item() {
    const size_t begin = at_;
    std::vector<std::string> names{""};
    while (at_ < text_.size() && text_[at_] != ',') {
      if (text_[at_] == '[') {
        names = append_group(names);
      } else {
        append_letter(names, text_[at_++]);
      }
    }
    if (at_ == begin) refuse(message("there is no host at position ", begin + 1));
    check_count(hosts_.size() + names.size());
    for (std::string& name : names) hosts_.push_back(std::move(name));
  }

  void append_letter(std::vector<std::string>& names, char letter) const {
    const bool valid = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= '0' && letter <= '9') || letter == '-' || letter == '.' ||
                       letter == '_';
    if (!valid) {
      refuse(message(in_quotes(std::string(1, letter)), " at position ", at_,
                     letter == ']' ? " closes no bracket" : " cannot be part of a host name"));
    }
    for (std::string& name : names) {
      if (name.size() >= kLongestHost) refuse("a name is longer than 253 characters");
      name += letter;
    }
  }

  // "[1-3,7]" after each of the names.
  std::vector<std::string> append_group(const std::vector<std::string>& names) {
    const size_t close = text_.find(']', at_);
    if (close == std::string_view::npos) {
      refuse(message("the bracket at position ", at_ + 1, " is not closed"));
    }
    const std::string_view group = text_.substr(at_ + 1, close - at_ - 1);
    if (group.find('[') != std::string_view::npos) refuse("there is a bracket inside of brackets");
    std::vector<std::string> numbers;
    for_each_part(group, ',',
                  [&](std::string_view range) { append_range(numbers, range, names.size()); });
    std::vector<std::string> out;
    out.reserve(names.size() * numbers.size());
    for (const std::string& name : names) {
      for (const std::string& number : numbers) {
        if (name.size() + number.size() > kLongestHost) {
          refuse("a name is longer than 253 characters");
        }
        out.push_back(name + number);
      }
    }
    at_ = close + 1;
    return out;
  }

  void append_range(std::vector<std::string>& numbers, std::string_view range, size_t names) const {
    const size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
    const auto first = digits(low);
    const auto last = digits(high);
    if (!first || !last) {
      refuse(message(in_quotes(range), " is neither a number nor a range of numbers"));
    }
    if (*first > *last) refuse(message("the range ", in_quotes(range), " is descending"));
    check_count((numbers.size() + static_cast<size_t>(*last - *first) + 1) * names);
    for (int number = *first; number <= *last; ++number) {
      std::string text = std::to_string(number);
      if (text.size() < low.size()) text.insert(0, low.size() - text.size(), '0');
      numbers.push_back(std::move(text));
    }
  }

  void check_count(size_t count) const {
    if (count > kMostHosts) refuse(message("it has more than ", kMostHosts, " hosts"));
  }

  std::string_view who_;
  std::string_view text_;
  size_t at_ = 0;
  std::vector<std::string> hosts_;
};

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view who, std::string_view text) {
  return HostlistReader(who, text).read();
}

std::vector<int> expand_tasks_per_node(std::string_view who, std::string_view text) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument,
                message(who, ": ", in_quotes(text), " does not say how many tasks each node has: ",
                        what, ". Examples: \"2\", \"2(x3),1\"."));
  };
  std::vector<int> out;
  for_each_part(text, ',', [&](std::string_view item) {
    const size_t open = item.find("(x");
    const bool repeated = open != std::string_view::npos && item.back() == ')';
    const auto tasks = digits(repeated ? item.substr(0, open) : item);
    const auto nodes =
        repeated ? digits(item.substr(open + 2, item.size() - open - 3)) : std::optional<int>(1);
    if (!tasks || !nodes || *nodes == 0 || *tasks > ClusterSpec::kLastIndex) {
      refuse(message(in_quotes(item), " is neither a number nor \"number(xnodes)\""));
    }
    if (out.size() + static_cast<size_t>(*nodes) > kMostHosts) {
      refuse(message("it has more than ", kMostHosts, " nodes"));
    }
    out.insert(out.end(), static_cast<size_t>(*nodes), *tasks);
  });
  return out;
}

}  // namespace tutti::internal

#include "core/json-reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace moecache {

const json_value * json_value::find(const std::string & name) const {
    const auto found =
        std::find_if(members.begin(), members.end(), [&name](const auto & member) { return member.first == name; });
    return found != members.end() ? &found->second : nullptr;
}

namespace {

class parser {
public:
    explicit parser(const std::string & t) : text(t) {}

    std::string run(json_value & out) {
        if (value(out, 0)) {
            skip_blanks();
            if (at < text.size()) {
                fail("nothing may follow the value");
            }
        }
        return error;
    }

private:
    static constexpr int max_depth = 32; // of nested values: the stack is finite

    bool fail(const std::string & what) {
        if (error.empty()) {
            const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
            error = "line " + std::to_string(line) + ": " + (at >= text.size() ? "the text ends early" : what);
        }
        return false;
    }

    void skip_blanks() {
        while (at < text.size() && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')) {
            at++;
        }
    }

    // The next character that is no blank; '\0' at the end.
    char next() {
        skip_blanks();
        return at < text.size() ? text[at] : '\0';
    }

    bool word(const char * expected) {
        const std::string wanted = expected;
        if (text.compare(at, wanted.size(), wanted) != 0) {
            return fail("a value was expected");
        }
        at += wanted.size();
        return true;
    }

    bool value(json_value & out, int depth) {
        if (depth > max_depth) {
            return fail("values are nested too deeply");
        }
        const char c = next();
        if (c == '{') {
            return object(out, depth);
        }
        if (c == '[') {
            return array(out, depth);
        }
        if (c == '"') {
            out.kind = json_kind::text;
            return string(out.text);
        }
        if (c == '-' || (c >= '0' && c <= '9')) {
            return number(out);
        }
        if (c == 't' || c == 'f') {
            out.kind  = json_kind::boolean;
            out.truth = c == 't';
            return word(out.truth ? "true" : "false");
        }
        return word("null");
    }

    bool object(json_value & out, int depth) {
        out.kind = json_kind::object;
        at++;
        if (next() == '}') {
            at++;
            return true;
        }
        for (;;) {
            std::string name;
            if (next() != '"') {
                return fail("a name in quotes was expected");
            }
            if (!string(name)) {
                return false;
            }
            if (out.find(name) != nullptr) {
                return fail("\"" + name + "\" is there twice");
            }
            if (next() != ':') {
                return fail("':' was expected");
            }
            at++;
            out.members.emplace_back(name, json_value());
            if (!value(out.members.back().second, depth + 1)) {
                return false;
            }
            const char c = next();
            if (c != ',' && c != '}') {
                return fail("',' or '}' was expected");
            }
            at++;
            if (c == '}') {
                return true;
            }
        }
    }

    bool array(json_value & out, int depth) {
        out.kind = json_kind::array;
        at++;
        if (next() == ']') {
            at++;
            return true;
        }
        for (;;) {
            json_value item;
            if (!value(item, depth + 1)) {
                return false;
            }
            if (item.kind == json_kind::whole && out.items.empty()) {
                out.numbers.push_back(item.number);
            } else {
                keep_items(out);
                out.items.push_back(std::move(item));
            }
            const char c = next();
            if (c != ',' && c != ']') {
                return fail("',' or ']' was expected");
            }
            at++;
            if (c == ']') {
                return true;
            }
        }
    }

    // The array is not one of whole numbers only.
    static void keep_items(json_value & out) {
        for (const int64_t number : out.numbers) {
            out.items.emplace_back();
            out.items.back().kind   = json_kind::whole;
            out.items.back().number = number;
        }
        out.numbers.clear();
    }

    bool number(json_value & out) {
        const size_t      end          = std::min(text.find_first_not_of("+-.0123456789eE", at), text.size());
        const std::string word         = text.substr(at, end - at);
        const bool        has_fraction = word.find_first_of(".eE") != std::string::npos;
        char *            stop         = nullptr;
        errno                          = 0;
        if (has_fraction) {
            std::strtod(word.c_str(), &stop);
        } else {
            out.number = std::strtoll(word.c_str(), &stop, 10);
        }
        if (*stop != '\0' || errno == ERANGE) {
            return fail("'" + word.substr(0, 40) + "' is no number, or too large");
        }
        out.kind = has_fraction ? json_kind::fraction : json_kind::whole;
        out.text = has_fraction ? word : "";
        at       = end;
        return true;
    }

    bool string(std::string & out) {
        for (at++; at < text.size(); at++) {
            const char c = text[at];
            if (c == '"') {
                at++;
                return true;
            }
            if (static_cast<unsigned char>(c) < 0x20) {
                return fail("a string may not hold a line end or another control character");
            }
            if (c != '\\') {
                out += c;
            } else if (!escape(out)) {
                return false;
            }
        }
        return fail("");
    }

    // At the backslash; at the last character of the escape afterwards.
    bool escape(std::string & out) {
        static const char * const letters = "\"\\/bfnrt";
        static const char * const meant   = "\"\\/\b\f\n\r\t";
        at++;
        if (at >= text.size()) {
            return fail("");
        }
        const std::string known = letters;
        const size_t      which = known.find(text[at]);
        if (which != std::string::npos) {
            out += meant[which];
            return true;
        }
        // Of the escapes by number our writer makes those of control characters.
        const std::string digits = text.substr(std::min(at + 1, text.size()), 4);
        if (text[at] != 'u' || digits.size() < 4 ||
            digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos || digits.substr(0, 2) != "00" ||
            std::strtol(digits.c_str(), nullptr, 16) > 0x7f) {
            return fail("an escape that is not known");
        }
        out += static_cast<char>(std::strtol(digits.c_str(), nullptr, 16));
        at += 4;
        return true;
    }

    const std::string & text;
    size_t              at = 0;
    std::string         error;
};

} // namespace

std::string json_parse(const std::string & text, json_value & out) {
    out = json_value();
    return parser(text).run(out);
}

} // namespace moecache

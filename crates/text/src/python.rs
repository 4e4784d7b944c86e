//! Values written as Python writes them, since templates were written for Python.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde_json::Value as Json;

/// `json.dumps` as transformers' `tojson` filter calls it: no ASCII escapes unless asked, order kept, and its options
/// `indent`, `separators`, `ensure_ascii` and `sort_keys`.
pub(crate) fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "tojson of an undefined value"));
    }
    let json = serde_json::to_value(value).map_err(|error| {
        Error::new(ErrorKind::BadSerialization, format!("tojson: not a JSON value: {error}"))
    })?;
    let indent: Option<usize> = kwargs.get("indent")?;
    let separators: Option<(String, String)> = match kwargs.get::<Option<Value>>("separators")? {
        None => None,
        Some(pair) if pair.is_none() => None,
        Some(pair) => {
            let part = |at: usize| -> Result<String, Error> {
                Ok(pair.get_item(&Value::from(at))?.to_string())
            };
            Some((part(0)?, part(1)?))
        }
    };
    let (item, key) = separators.unwrap_or_else(|| {
        let item = if indent.is_some() { "," } else { ", " };
        (item.to_owned(), ": ".to_owned())
    });
    let style = Dumps {
        indent,
        item,
        key,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(&json, 0, &mut out);
    Ok(Value::from_safe_string(out))
}

/// The options of `json.dumps`.
struct Dumps {
    indent: Option<usize>,
    item: String,
    key: String,
    ascii: bool,
    sort: bool,
}

impl Dumps {
    fn write(&self, json: &Json, depth: usize, out: &mut String) {
        match json {
            Json::Null => out.push_str("null"),
            Json::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
            Json::Number(number) => out.push_str(&number_text(number)),
            Json::String(text) => self.string(text, out),
            Json::Array(items) => {
                self.list('[', ']', items, depth, out, |item, depth, out| {
                    self.write(item, depth, out);
                });
            }
            Json::Object(map) => {
                let mut entries: Vec<(&String, &Json)> = map.iter().collect();
                if self.sort {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.list('{', '}', &entries, depth, out, |(key, value), depth, out| {
                    self.string(key, out);
                    out.push_str(&self.key);
                    self.write(value, depth, out);
                });
            }
        }
    }

    fn list<T>(
        &self,
        open: char,
        close: char,
        items: &[T],
        depth: usize,
        out: &mut String,
        mut each: impl FnMut(&T, usize, &mut String),
    ) {
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(&self.item);
            }
            self.line(depth + 1, out);
            each(item, depth + 1, out);
        }
        if !items.is_empty() {
            self.line(depth, out);
        }
        out.push(close);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(width) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn number_text(number: &serde_json::Number) -> String {
    if number.is_f64() {
        // `is_f64` means that `as_f64` is the number itself.
        number.as_f64().map(float_text).unwrap_or_default()
    } else {
        number.to_string()
    }
}

/// `repr(float)`: shortest digits that read back, in scientific notation below 1e-4 and from 1e16 on.
fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(power) if value != 0.0 && !(-4..16).contains(&power) => {
            let sign = if power < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", power.abs())
        }
        _ => format!("{value:?}"),
    }
}

/// `str(value)`: what `{{ value }}` prints.
pub(crate) fn display(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.to_string(),
        _ => repr(value),
    }
}

/// `str(value).strip(chars)`.
pub(crate) fn trim(value: &Value, chars: Option<&str>) -> String {
    let text = display(value);
    let trimmed = match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
        // Python counts the four separators U+001C..U+001F as white space, Unicode does not.
        None => text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\x1c'..='\x1f')),
    };
    trimmed.to_owned()
}

fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => float_text(number),
            Err(_) => value.to_string(),
        },
        ValueKind::String => string_repr(&value.to_string()),
        ValueKind::Seq => match value.try_iter() {
            Ok(items) => format!("[{}]", items.map(|i| repr(&i)).collect::<Vec<_>>().join(", ")),
            Err(_) => value.to_string(),
        },
        ValueKind::Map => match value.try_iter() {
            Ok(keys) => {
                let entry = |key: Value| {
                    let item = value.get_item(&key).unwrap_or_default();
                    format!("{}: {}", repr(&key), repr(&item))
                };
                format!("{{{}}}", keys.map(entry).collect::<Vec<_>>().join(", "))
            }
            Err(_) => value.to_string(),
        },
        _ => value.to_string(),
    }
}

/// `repr(str)`: single quotes, unless the text has single quotes and no double ones.
fn string_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if !is_printable(c) => out.push_str(&match u32::from(c) {
                code @ ..0x100 => format!("\\x{code:02x}"),
                code @ 0x100..0x1_0000 => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// `str.isprintable`: all but controls, formats, private and unassigned code points, and separators other than a space.
fn is_printable(character: char) -> bool {
    // The standard library escapes by the same rule, in every place but a text's first; quotes and backslashes, which it
    // escapes too, are printable.
    let text = String::from_iter(['a', character]);
    matches!(character, '"' | '\'' | '\\') || text.escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn floats_read_as_in_python() {
        // The right column is Python's own `repr`.
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456789.125, "123456789.125"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (-2.5e-7, "-2.5e-07"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(float_text(value), text);
        }
    }

    #[test]
    fn values_print_as_in_python() {
        let value = Value::from_serialize(json!({
            "a": [1, 2.0, true, null, "it's", "say \"it's\"\n"], "b": {}
        }));
        assert_eq!(
            display(&value),
            r#"{'a': [1, 2.0, True, None, "it's", 'say "it\'s"\n'], 'b': {}}"#
        );
        assert_eq!(display(&Value::from("it's")), "it's");
        let odd = json!(["\0\u{7f}\u{a0}\u{200d}\u{2028}\u{e000}\u{e0001}", "e\u{301} \u{94d}"]);
        assert_eq!(
            display(&Value::from_serialize(odd)),
            "['\\x00\\x7f\\xa0\\u200d\\u2028\\ue000\\U000e0001', 'e\u{301} \u{94d}']"
        );
        assert_eq!(display(&Value::UNDEFINED), "");
        assert_eq!(trim(&Value::from(" \u{1f}a \u{2003}"), None), "a");
        assert_eq!(trim(&Value::from("xyax"), Some("xy")), "a");
        assert_eq!(trim(&Value::from(()), None), "None");
    }
}

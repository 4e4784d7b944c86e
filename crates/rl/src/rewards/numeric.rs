//! Numbers in texts.

/// The numbers of a text in order, as written: an optional sign (`-`, `−`), digits with thousands separators, an optional
/// decimal part, an optional exponent. A sign, and a point before the first digit, count only where no digit or letter
/// precedes them: `3-4` holds 3 and 4, `v.5` holds 5.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = f64> + '_ {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = (at..bytes.len()).find(|&i| begins(bytes, i))?;
        let (written, end) = number(bytes, start);
        at = end;
        written.parse().ok()
    })
}

fn digit(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_some_and(u8::is_ascii_digit)
}

/// Whether the first digit of a number is here, or a point before it.
fn begins(bytes: &[u8], at: usize) -> bool {
    let joined = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.';
    let point =
        bytes[at] == b'.' && digit(bytes, at + 1) && !bytes[..at].last().is_some_and(joined);
    point || digit(bytes, at)
}

/// Whether what precedes a number ends in a minus sign of its own.
fn is_negative(before: &[u8]) -> bool {
    let minus = before.strip_suffix(b"-").or_else(|| before.strip_suffix("\u{2212}".as_bytes()));
    minus.is_some_and(|before| !before.last().is_some_and(u8::is_ascii_alphanumeric))
}

/// The number that begins at `start`, as Rust writes it, and where it ends.
fn number(bytes: &[u8], start: usize) -> (String, usize) {
    let mut written = String::from(if is_negative(&bytes[..start]) { "-" } else { "" });
    let mut at = start;
    while digit(bytes, at) {
        written.push(char::from(bytes[at]));
        at += 1;
        // A comma inside a number is followed by exactly three digits.
        let group = bytes.get(at) == Some(&b',')
            && (1..4).all(|i| digit(bytes, at + i))
            && !digit(bytes, at + 4);
        at += usize::from(group);
    }
    let mut digits_from = |mark: &str, mut at: usize| {
        written.push_str(mark);
        while digit(bytes, at) {
            written.push(char::from(bytes[at]));
            at += 1;
        }
        at
    };
    if bytes.get(at) == Some(&b'.') && digit(bytes, at + 1) {
        at = digits_from(".", at + 1);
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let (mark, first) = match bytes.get(at + 1) {
            Some(b'-') => ("e-", at + 2),
            Some(b'+') => ("e", at + 2),
            _ => ("e", at + 1),
        };
        if digit(bytes, first) {
            at = digits_from(mark, first);
        }
    }
    (written, at)
}

/// The text after the last `####`, where GSM8K's solutions state their answer.
pub(super) fn after_mark(text: &str) -> Option<&str> {
    text.rsplit_once("####").map(|(_, answer)| answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_as_people_write_them() {
        let found: Vec<f64> = numbers("It is 1,234.50, not -7 or 3-4; $12. v2 1,23").collect();
        assert_eq!(found, [1234.5, -7.0, 3.0, 4.0, 12.0, 2.0, 1.0, 23.0]);
        assert_eq!(numbers("none. 'e' .").count(), 0);
    }

    /// What was once read as another number, and gave reward to wrong answers.
    #[test]
    fn points_exponents_and_signs_belong_to_their_numbers() {
        for (text, expected) in [
            (".5", &[0.5][..]),
            ("-.5 or $.25", &[-0.5, 0.25]),
            ("1.5e3, 2E-2, 1e+2", &[1500.0, 0.02, 100.0]),
            ("\u{2212}3 and 4\u{2212}3", &[-3.0, 4.0, 3.0]),
            ("1e and 2em", &[1.0, 2.0]),
            ("1.2.3 v.5 so...7", &[1.2, 3.0, 5.0, 7.0]),
            ("12.", &[12.0]),
            ("1e999", &[f64::INFINITY]),
        ] {
            assert_eq!(numbers(text).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn an_answer_stands_after_the_last_mark() {
        assert_eq!(after_mark("a #### 1\n#### 42"), Some(" 42"));
        assert_eq!(after_mark("42"), None);
    }
}

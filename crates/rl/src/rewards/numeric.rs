//! Numbers in texts.

/// The numbers of a text in order, as written: an optional sign, digits with thousands separators, an optional decimal
/// part. A sign counts only where no digit or letter precedes it, so `3-4` holds 3 and 4.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = f64> + '_ {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
            if !digit(at) {
                at += 1;
                continue;
            }
            let signed = at > 0
                && bytes[at - 1] == b'-'
                && !at.checked_sub(2).is_some_and(|i| bytes[i].is_ascii_alphanumeric());
            let mut written = String::from(if signed { "-" } else { "" });
            while digit(at) {
                written.push(char::from(bytes[at]));
                at += 1;
                // A comma inside a number is followed by exactly three digits.
                let group =
                    bytes.get(at) == Some(&b',') && (1..4).all(|i| digit(at + i)) && !digit(at + 4);
                at += usize::from(group);
            }
            if bytes.get(at) == Some(&b'.') && digit(at + 1) {
                written.push('.');
                at += 1;
                while digit(at) {
                    written.push(char::from(bytes[at]));
                    at += 1;
                }
            }
            return written.parse().ok();
        }
        None
    })
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
        assert_eq!(numbers("none").count(), 0);
    }

    #[test]
    fn an_answer_stands_after_the_last_mark() {
        assert_eq!(after_mark("a #### 1\n#### 42"), Some(" 42"));
        assert_eq!(after_mark("42"), None);
    }
}

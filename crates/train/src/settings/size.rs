//! Sizes of memory as people write them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes, written as a number with a unit: `6GiB`, `512 MiB`, `2.5GB`, `1073741824B`. A bare number is refused: whoever
/// writes 6 means gibibytes and not bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KIB", 1 << 10),
    ("MIB", 1 << 20),
    ("GIB", 1 << 30),
    ("TIB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is not a size; write a number with a unit, such as 6GiB or 512MiB")
        };
        let text = text.trim();
        let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let unit = unit.trim().to_ascii_uppercase();
        if unit.is_empty() {
            return Err(format!(
                "`{text}` has no unit: {text}GiB? (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)"
            ));
        }
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let bytes = number * *factor as f64;
        // Past 2^53 a float has no odd integers; no machine has such memory either.
        if !(1.0..9e15).contains(&bytes) {
            return Err(wrong());
        }
        Ok(Size(bytes as usize))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut bytes, mut unit) = (self.0, "B");
        for (name, factor) in
            [("TiB", 1usize << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
        {
            if bytes > 0 && bytes.is_multiple_of(factor) {
                (bytes, unit) = (bytes / factor, name);
                break;
            }
        }
        write!(f, "{bytes}{unit}")
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": r"^\s*[0-9.]+\s*([KMGTkmgt][Ii]?)?[Bb]\s*$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes, printed) in [
            ("6GiB", 6usize << 30, "6GiB"),
            ("512 mib", 512 << 20, "512MiB"),
            ("1.5KiB", 1536, "1536B"),
            ("2GB", 2_000_000_000, "1953125KiB"),
            ("1024B", 1024, "1KiB"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, printed));
            assert_eq!(size.to_string().parse(), Ok(size));
        }
    }

    #[test]
    fn a_bare_number_is_asked_about() {
        for text in ["6", " 6 ", "1073741824"] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains(&format!("{}GiB?", text.trim())), "{error}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "GiB", "6GiBs", "-1", "0B", "1e9", "1.2.3", "99999999TiB", "6 G iB"] {
            assert!(text.parse::<Size>().unwrap_err().contains("is not a size"), "{text}");
        }
    }
}

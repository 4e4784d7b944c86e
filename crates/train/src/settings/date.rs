//! Days as people write them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::civil;
use jiff::tz::TimeZone;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A day of the calendar in UTC, written `2026-12-01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date(civil::Date);

/// The first day that [`Date`] takes: no clock that is right says an earlier one.
const FIRST: civil::Date = civil::date(1970, 1, 1);
/// The last one: four digits.
const LAST: civil::Date = civil::date(9998, 12, 31);

impl Date {
    /// The day that the machine's clock says; its first one where the clock is before it.
    pub fn today() -> Date {
        let seconds =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let now =
            i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        let day = now.map_or(LAST, |now| now.to_zoned(TimeZone::UTC).date());
        Date(day.clamp(FIRST, LAST))
    }

    /// Seconds from 1970-01-01T00:00Z to the day's first moment.
    pub fn unix_time(self) -> i64 {
        i64::from((self.0 - FIRST).get_days()) * 86_400
    }
}

impl FromStr for Date {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not a day; write year, month and day, such as 2026-12-01");
        let form =
            |(at, c): (usize, u8)| if at == 4 || at == 7 { c == b'-' } else { c.is_ascii_digit() };
        if text.len() != 10 || !text.bytes().enumerate().all(form) {
            return Err(wrong());
        }
        let day: civil::Date = text.parse().map_err(|_| wrong())?;
        if !(FIRST..=LAST).contains(&day) {
            return Err(format!("`{text}` is not between {FIRST} and {LAST}"));
        }
        Ok(Date(day))
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Date {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Date {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Date {
    fn schema_name() -> Cow<'static, str> {
        "Date".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_read_and_print_and_have_a_first_moment() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("1970-01-02", 86_400),
            ("2024-02-29", 1_709_164_800),
            ("2026-12-01", 1_796_083_200),
            ("9998-12-31", 253_370_678_400),
        ] {
            let day: Date = text.parse().unwrap();
            assert_eq!((day.to_string().as_str(), day.unix_time()), (text, seconds));
            assert_eq!(serde_json::from_value::<Date>(serde_json::json!(day)).unwrap(), day);
        }
    }

    #[test]
    fn what_is_no_day_is_refused() {
        for text in [
            "",
            "today",
            "2026-12",
            "2026-02-29",
            "2026-13-01",
            "26-12-01",
            "2026-12-01T00",
            "+026-12-01",
        ] {
            assert!(text.parse::<Date>().unwrap_err().contains("is not a day"), "{text}");
        }
        for text in ["1969-12-31", "9999-01-01"] {
            assert!(text.parse::<Date>().unwrap_err().contains("is not between"), "{text}");
        }
    }

    #[test]
    fn today_is_not_before_this_was_written() {
        assert!(Date::today().unix_time() > "2026-11-01".parse::<Date>().unwrap().unix_time());
    }
}

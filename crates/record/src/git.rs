//! The state of the working directory's git repository: the commit, and what differs from it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::error::{RecordError, io};

/// The largest patch that is kept whole, bytes; a larger one is known by its hash.
pub const PATCH_BYTES_LIMIT: usize = 16 << 20;
/// Untracked files that are named.
const UNTRACKED_NAMED: usize = 50;

/// What git says of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "git")]
pub enum Git {
    /// It is in no repository.
    NoRepository,
    /// Git is not installed, or failed.
    Unavailable {
        /// Why.
        why: String,
    },
    /// It is in a repository.
    Repository(Repository),
}

/// A repository's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repository {
    /// The top folder.
    pub root: PathBuf,
    /// The commit that is checked out; absent where there is none yet.
    pub commit: Option<String>,
    /// The branch, if one is checked out.
    pub branch: Option<String>,
    /// What differs from the commit (from nothing, where there is none yet) in tracked files: absent in a clean tree.
    pub patch: Option<Patch>,
    /// Files that git neither tracks nor ignores. They do not make a tree dirty: runs and data often are such.
    pub untracked: usize,
    /// The first of them.
    pub untracked_named: Vec<String>,
}

/// A difference from a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    /// Its size.
    pub bytes: usize,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub blake3: String,
    /// Files that differ.
    pub files: Vec<String>,
    /// The patch itself, for `git apply`; a file of the record, not a part of it.
    #[serde(skip)]
    pub content: Vec<u8>,
}

impl Git {
    /// Looks at the repository that holds a directory.
    pub fn of(directory: &Path) -> Git {
        let top = match git(directory, &["rev-parse", "--show-toplevel"]) {
            Ok(Answer { ok: true, out, .. }) => PathBuf::from(text(&out)),
            Ok(Answer { err, .. }) if err.contains("not a git repository") => {
                return Git::NoRepository;
            }
            Ok(Answer { err, .. }) => return Git::Unavailable { why: err },
            Err(why) => return Git::without(directory, why),
        };
        match Self::look(&top) {
            Ok(repository) => Git::Repository(repository),
            Err(why) => Git::Unavailable { why },
        }
    }

    /// Where git cannot be run, a repository still shows by its folder.
    fn without(directory: &Path, why: String) -> Git {
        let is_top = |place: &Path| place.join(".git").exists();
        if directory.ancestors().any(is_top) { Git::Unavailable { why } } else { Git::NoRepository }
    }

    fn look(root: &Path) -> Result<Repository, String> {
        let commit = answer(root, &["rev-parse", "--verify", "--quiet", "HEAD"]).ok();
        let branch = answer(root, &["symbolic-ref", "--short", "--quiet", "HEAD"]).ok();
        let base = match &commit {
            Some(commit) => text(commit),
            // What a tree has before its first commit differs from nothing: the tree of no files.
            None => text(&answer(root, &["hash-object", "-t", "tree", "/dev/null"])?),
        };
        let patch = difference(root, &base)?;
        let untracked =
            whole(root, &["ls-files", "--others", "--exclude-standard", "-z", "--directory"])?;
        let names = zero_separated(&untracked);
        Ok(Repository {
            root: root.to_owned(),
            commit: commit.map(|out| text(&out)),
            branch: branch.map(|out| text(&out)),
            patch,
            untracked: names.len(),
            untracked_named: names.into_iter().take(UNTRACKED_NAMED).collect(),
        })
    }

    /// What differs from the commit, in a dirty tree.
    pub fn patch(&self) -> Option<&Patch> {
        match self {
            Git::Repository(repository) => repository.patch.as_ref(),
            _ => None,
        }
    }
}

impl Patch {
    /// Whether a record keeps the patch itself: one over [`PATCH_BYTES_LIMIT`] is known by its hash alone.
    pub fn is_kept(&self) -> bool {
        self.bytes <= PATCH_BYTES_LIMIT
    }

    /// Writes the patch as a file, where it [is kept](Self::is_kept).
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub fn write(&self, folder: &Path, name: &str) -> Result<(), RecordError> {
        if !self.is_kept() {
            return Ok(());
        }
        crate::durable::write(folder, name, &self.content)
    }
}

/// What tracked files have that a commit or tree has not, staged or not.
fn difference(root: &Path, base: &str) -> Result<Option<Patch>, String> {
    // Settings of the user must not change the patch, nor make one that `git apply` does not take.
    const SETTINGS: [&str; 8] = [
        "-c",
        "diff.mnemonicPrefix=false",
        "-c",
        "diff.noprefix=false",
        "-c",
        "diff.suppressBlankEmpty=false",
        "-c",
        "core.quotePath=true",
    ];
    const PLAIN: [&str; 15] = [
        "--binary",
        "--full-index",
        "--no-color",
        "--no-ext-diff",
        "--no-renames",
        "--no-textconv",
        "--no-relative",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        "--diff-algorithm=myers",
        "--indent-heuristic",
        "--unified=3",
        "--inter-hunk-context=0",
        "--ignore-submodules=none",
        "--submodule=short",
    ];
    let ask = |more: &[&str]| whole(root, &[&SETTINGS[..], &["diff", base], &PLAIN, more].concat());
    let content = ask(&["-O/dev/null"])?;
    if content.is_empty() {
        return Ok(None);
    }
    let files = ask(&["--name-only", "-z"])?;
    Ok(Some(Patch {
        bytes: content.len(),
        blake3: blake3::hash(&content).to_hex().to_string(),
        files: zero_separated(&files),
        content,
    }))
}

struct Answer {
    ok: bool,
    out: Vec<u8>,
    err: String,
}

fn git(directory: &Path, args: &[&str]) -> Result<Answer, String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(args)
        // Looking must not write: without locks git leaves its index as it is.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("LC_ALL", "C")
        .output()
        .map_err(|error| io("run", Path::new("git"))(error).to_string())?;
    Ok(Answer {
        ok: output.status.success(),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Output of a command that must succeed.
fn whole(directory: &Path, args: &[&str]) -> Result<Vec<u8>, String> {
    let answer = git(directory, args)?;
    if answer.ok { Ok(answer.out) } else { Err(format!("git {}: {}", args.join(" "), answer.err)) }
}

/// The same, of one that says something.
fn answer(directory: &Path, args: &[&str]) -> Result<Vec<u8>, String> {
    let out = whole(directory, args)?;
    if out.is_empty() { Err("no answer".into()) } else { Ok(out) }
}

fn text(out: &[u8]) -> String {
    String::from_utf8_lossy(out).trim_end_matches('\n').to_owned()
}

fn zero_separated(out: &[u8]) -> Vec<String> {
    let names = out.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn run(folder: &Path, args: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let answer = git(folder, &[&identity[..], args].concat()).unwrap();
        assert!(answer.ok, "git {args:?}: {}", answer.err);
    }

    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), &["init", "-q", "-b", "trunk"]);
        fs::write(folder.path().join("a.txt"), "one\n").unwrap();
        run(folder.path(), &["add", "a.txt"]);
        run(folder.path(), &["commit", "-q", "-m", "first"]);
        folder
    }

    fn look(folder: &Path) -> Repository {
        match Git::of(folder) {
            Git::Repository(repository) => repository,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_clean_tree_has_a_commit_and_no_patch() {
        let folder = repository();
        let found = look(folder.path());
        assert_eq!(found.commit.as_ref().map(String::len), Some(40));
        assert_eq!(
            (found.branch.as_deref(), found.patch, found.untracked),
            (Some("trunk"), None, 0)
        );
        fs::write(folder.path().join("new.txt"), "x").unwrap();
        let found = look(folder.path());
        assert!(found.patch.is_none(), "an untracked file makes no tree dirty");
        assert_eq!((found.untracked, found.untracked_named), (1, vec!["new.txt".to_owned()]));
    }

    #[test]
    fn a_dirty_tree_has_a_patch_that_gives_the_tree_back() {
        let folder = repository();
        fs::write(folder.path().join("a.txt"), "two\n").unwrap();
        fs::write(folder.path().join("b.bin"), [0u8, 159, 146, 150]).unwrap();
        run(folder.path(), &["add", "b.bin"]);
        let patch = look(folder.path()).patch.unwrap();
        assert_eq!(patch.files, ["a.txt", "b.bin"]);
        assert_eq!(patch.blake3, blake3::hash(&patch.content).to_hex().to_string());
        let again = Git::of(&folder.path().join("."));
        assert_eq!(again.patch(), Some(&patch));
        assert_eq!(Git::NoRepository.patch(), None);

        let store = tempfile::tempdir().unwrap();
        patch.write(store.path(), "changes.patch").unwrap();
        run(folder.path(), &["reset", "-q", "--hard"]);
        assert!(look(folder.path()).patch.is_none());
        let file = store.path().join("changes.patch");
        run(folder.path(), &["apply", file.to_str().unwrap()]);
        assert_eq!(fs::read(folder.path().join("a.txt")).unwrap(), b"two\n");
        assert_eq!(fs::read(folder.path().join("b.bin")).unwrap(), [0u8, 159, 146, 150]);
    }

    #[test]
    fn a_patch_over_the_limit_is_known_by_its_hash() {
        let content = vec![b'x'; PATCH_BYTES_LIMIT + 1];
        let patch = Patch { bytes: content.len(), blake3: String::new(), files: vec![], content };
        let store = tempfile::tempdir().unwrap();
        patch.write(store.path(), "changes.patch").unwrap();
        assert!(!patch.is_kept() && !store.path().join("changes.patch").exists());
        let patch =
            Patch { bytes: PATCH_BYTES_LIMIT, content: vec![b'x'; PATCH_BYTES_LIMIT], ..patch };
        patch.write(store.path(), "changes.patch").unwrap();
        assert!(store.path().join("changes.patch").exists());
    }

    #[test]
    fn no_repository_and_no_commit_are_said() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Git::of(folder.path()), Git::NoRepository);
        assert!(matches!(Git::of(&folder.path().join("gone")), Git::Unavailable { .. }));
        run(folder.path(), &["init", "-q"]);
        let found = look(folder.path());
        assert_eq!((found.commit, found.patch), (None, None));
    }

    #[test]
    fn what_is_staged_before_the_first_commit_is_a_patch() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), &["init", "-q"]);
        fs::write(folder.path().join("a.txt"), "one\n").unwrap();
        run(folder.path(), &["add", "a.txt"]);
        let found = look(folder.path());
        assert_eq!(found.commit, None);
        assert_eq!(found.patch.unwrap().files, ["a.txt"]);
    }

    #[test]
    fn without_git_a_repository_is_known_by_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("a/b");
        fs::create_dir_all(&inside).unwrap();
        assert_eq!(Git::without(&inside, "why".into()), Git::NoRepository);
        fs::create_dir(folder.path().join(".git")).unwrap();
        assert_eq!(Git::without(&inside, "why".into()), Git::Unavailable { why: "why".into() });
    }

    #[test]
    fn settings_of_the_user_change_no_byte_of_a_patch() {
        let folder = repository();
        fs::write(folder.path().join("a.txt"), "two\n").unwrap();
        let plain = look(folder.path()).patch.unwrap();
        for (key, value) in [
            ("diff.noprefix", "true"),
            ("diff.mnemonicPrefix", "true"),
            ("diff.context", "0"),
            ("diff.algorithm", "histogram"),
            ("diff.orderFile", "order"),
            ("core.abbrev", "4"),
            ("color.ui", "always"),
        ] {
            run(folder.path(), &["config", key, value]);
        }
        fs::write(folder.path().join("order"), "b*\n").unwrap();
        let patch = look(folder.path()).patch.unwrap();
        assert_eq!(
            String::from_utf8_lossy(&patch.content),
            String::from_utf8_lossy(&plain.content)
        );
    }
}

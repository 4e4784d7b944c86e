//! A disk that is full in the middle of a checkpoint. In a file of its own: the limit is the whole process's.

mod common;

use common::{Fixture, Watch, checkpoints, files};
use record::{Record, Status};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::process::Command;
use train::{Flow, Observer, Outcome, StepEvent};

const NAME: &str = "a_disk_that_is_full_in_the_middle_of_a_checkpoint";
/// Set in the process that has the limit.
const LIMITED: &str = "SAMEBIT_TEST_LIMITED";

/// Lets no file of this process be longer than so many bytes, or any length again.
fn limit(bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
}

/// After the fourth step: the checkpoint after the third is made, and room for the next one is held.
struct Fills(u64);

impl Observer for Fills {
    fn step(&mut self, event: &StepEvent) -> Flow {
        if event.step == 4 {
            limit(Some(self.0));
        }
        Flow::Continue
    }
}

/// No file may be as long as a checkpoint's: what a full disk does, but for the words.
#[test]
fn a_disk_that_is_full_in_the_middle_of_a_checkpoint() {
    if std::env::var_os(LIMITED).is_none() {
        // A process is killed by the signal for such a file, unless it was begun without it.
        let script = r#"trap '' XFSZ; exec "$@""#;
        let test = std::env::current_exe().unwrap();
        let limited = Command::new("bash")
            .args(["-c", script, "bash", test.to_str().unwrap(), "--exact", NAME, "--nocapture"])
            .env(LIMITED, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&limited.stdout);
        assert!(
            limited.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&limited.stderr)
        );
        return;
    }
    let fixture = Fixture::new("llama");
    let product = |outcome| match outcome {
        Outcome::Finished { product } => files(&product),
        stopped => panic!("{stopped:?}"),
    };
    let whole = product(fixture.run("whole", "", false, &mut Watch::default()).unwrap());
    let state = fixture.out("whole").join("checkpoints/step-3/state.safetensors");
    let most = fs::metadata(state).unwrap().len() / 2;

    let ended = fixture.run("out", "", false, &mut Fills(most));
    limit(None);
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("state.safetensors") && error.contains("File too large"), "{error}");
    let folder = fixture.out("out");
    let record = Record::read(&folder).unwrap();
    let Status::Failed { error: said, .. } = &record.status else { panic!("{:?}", record.status) };
    assert_eq!(*said, error);
    let seal = record::look_at_seal(&folder, &Record::read(&folder).unwrap().status, None)
        .unwrap()
        .0
        .unwrap();
    assert_eq!(seal.verify(&folder, None).unwrap(), vec![]);
    // The checkpoint before it is whole, and nothing of the new one is left.
    let third = |run: &str| {
        let mut all = checkpoints(&fixture.out(run));
        all.retain(|(path, _)| !path.starts_with("step-6"));
        all
    };
    assert!(checkpoints(&folder) == third("whole"));

    let mut watch = Watch::default();
    let resumed = product(fixture.run("out", "", true, &mut watch).unwrap());
    assert_eq!(watch.began, Some((3, 8)));
    assert_eq!(fixture.steps("out"), fixture.steps("whole"));
    assert!(resumed == whole && checkpoints(&folder) == checkpoints(&fixture.out("whole")));
}

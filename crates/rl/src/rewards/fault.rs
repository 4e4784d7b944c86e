//! Why a completion has no reward.

use std::path::PathBuf;

/// Why one completion has no reward.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The verifier compares with an answer and the prompt has none.
    #[error("its prompt has no `answer` that the verifier can compare with: {reason}")]
    NoAnswer {
        /// What is wrong with it.
        reason: String,
    },
    /// Something other than a finite number came as a reward.
    #[error("the grader gave `{found}` where a finite number is needed")]
    NotANumber {
        /// What came.
        found: String,
    },
    /// Something other than JSON came.
    #[error("the grader gave `{found}`, which is not JSON")]
    NotJson {
        /// What came.
        found: String,
    },
    /// The program ended before it graded the completion.
    #[error("the reward program ended ({status}) before it graded the sample{said}")]
    Ended {
        /// Its exit status.
        status: String,
        /// What it wrote to its error stream, if anything.
        said: String,
    },
    /// The grader took longer than it may.
    #[error("the grader did not answer within {limit_s} s")]
    TimedOut {
        /// The limit, seconds.
        limit_s: f64,
    },
    /// The program could not be started or spoken to.
    #[error("the reward program `{program}` cannot run: {reason}")]
    CannotRun {
        /// The program.
        program: String,
        /// Why.
        reason: String,
    },
    /// The endpoint could not be reached or refused.
    #[error("the reward endpoint {url}: {reason}")]
    Endpoint {
        /// Its address.
        url: String,
        /// Why.
        reason: String,
    },
}

/// Rewards that end a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RewardError {
    /// A completion could not be graded and the settings say to fail.
    #[error(
        "step {step}, sample {sample} (prompt {prompt}): {fault}. Mend the grader, or set reward_failure = \"drop\" to \
         leave such samples out"
    )]
    Ungraded {
        /// The step, from 1.
        step: usize,
        /// Number of the sample in it.
        sample: usize,
        /// Where the prompt comes from: file and line.
        prompt: String,
        /// Why.
        fault: Fault,
    },
    /// Every completion of a step was dropped.
    #[error("step {step}: none of {samples} samples was graded; the first: {fault}")]
    NoneGraded {
        /// The step, from 1.
        step: usize,
        /// Samples of the step.
        samples: usize,
        /// Why the first one was not.
        fault: Fault,
    },
    /// A schema file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

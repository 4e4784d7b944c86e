//! Why there is no reward: of one completion ([`Fault`]), or of a whole batch ([`Outage`]).

use serde::{Deserialize, Serialize};

/// Why one completion has no reward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The verifier compares with an answer and the prompt has none.
    #[error("the prompt has no `answer` that the verifier can compare with: {reason}")]
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
    /// The grader named the samples that it graded, and this is none of them.
    #[error("the grader gave no answer that names it: {why}")]
    Unanswered {
        /// How the conversation ended.
        why: Outage,
    },
}

/// Why the answers of a grader to a whole batch cannot be used: whose they are is not known, or there are none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Outage {
    /// The program could not be started or spoken to.
    #[error("the reward program `{program}` cannot run: {reason}")]
    CannotRun {
        /// The program.
        program: String,
        /// Why.
        reason: String,
    },
    /// The program ended with an error, or before it graded every completion.
    #[error("the reward program ended ({status}) after {answered} of {samples} answers{said}")]
    Ended {
        /// Its exit status.
        status: String,
        /// Answers until then.
        answered: usize,
        /// Completions of the batch.
        samples: usize,
        /// What it wrote to its error stream, after a colon, if anything.
        said: String,
    },
    /// The grader took longer than it may.
    #[error(
        "the grader gave {answered} of {samples} answers within {limit_s} s (reward_timeout_s)"
    )]
    TimedOut {
        /// The limit, seconds.
        limit_s: f64,
        /// Answers until then.
        answered: usize,
        /// Completions of the batch.
        samples: usize,
    },
    /// The program answered and did not end, so that more answers may come.
    #[error(
        "the reward program gave {samples} answers and neither closed its output nor ended within {limit_s} s \
         (reward_timeout_s): it must end where its input does"
    )]
    Lingers {
        /// The limit, seconds.
        limit_s: f64,
        /// Completions of the batch.
        samples: usize,
    },
    /// Fewer answers than completions.
    #[error(
        "the grader gave {answered} answers for {samples} samples: which it left out is not known, so none counts; answer \
         each, or name the sample in each answer: {{\"sample\": 3, \"reward\": 1}}"
    )]
    TooFew {
        /// Answers.
        answered: usize,
        /// Completions of the batch.
        samples: usize,
    },
    /// More answers than completions.
    #[error(
        "the grader gave more answers than there are samples, {samples}; the first too many: `{surplus}`: which are \
         the answers is not known, so none counts; print one line a sample to standard output and all else to \
         standard error"
    )]
    TooMany {
        /// Completions of the batch.
        samples: usize,
        /// The beginning of the first one too many.
        surplus: String,
    },
    /// An answer without an end.
    #[error("answer {number} of the reward program has more than {limit} bytes on its line")]
    LongLine {
        /// Which, from 1.
        number: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// An answer names another sample than the one in its place.
    #[error(
        "answer {number} of the grader names sample {named}, and there it is sample {due}'s turn: answer in order, or \
         name the sample in every answer"
    )]
    WrongSample {
        /// Which answer, from 1.
        number: usize,
        /// The sample that it names.
        named: String,
        /// The sample in that place, from 0.
        due: usize,
    },
    /// An answer names no sample of the batch.
    #[error("answer {number} of the grader names sample {named}; samples go from 0 to {last}")]
    UnknownSample {
        /// Which answer, from 1.
        number: usize,
        /// The sample that it names.
        named: String,
        /// The last sample.
        last: usize,
    },
    /// Two answers name one sample.
    #[error("answer {number} of the grader names sample {sample}, which has an answer")]
    Twice {
        /// Which answer, from 1.
        number: usize,
        /// The sample that it names.
        sample: usize,
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

/// Rewards that end a run, or keep it from beginning.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RewardError {
    /// A prompt whose completions no verifier can grade.
    #[error("{prompt}: {fault}; mend the data, or choose another `reward`")]
    Prompt {
        /// Where the prompt comes from: file and line.
        prompt: String,
        /// Why.
        fault: Fault,
    },
    /// The grader failed at one completion, before the first step.
    #[error(
        "before the first step the grader was asked about an empty completion of one prompt: {outage}. Mend the \
         grader: rollouts hold such completions too"
    )]
    NotReady {
        /// Why.
        outage: Outage,
    },
    /// A completion could not be graded and the settings say to fail.
    #[error(
        "step {step}, sample {sample} (prompt {prompt}): {fault}. Mend the grader, or set reward_failure = \"drop\" to \
         leave such samples out"
    )]
    Ungraded {
        /// The step, from 1; 0 before the first.
        step: usize,
        /// Number of the sample in it.
        sample: usize,
        /// Where the prompt comes from: file and line.
        prompt: String,
        /// Why.
        fault: Fault,
    },
    /// No answer of a whole batch can be used.
    #[error("step {step}: {outage}. Mend the grader")]
    Outage {
        /// The step, from 1; 0 before the first.
        step: usize,
        /// Why.
        outage: Outage,
    },
    /// Every completion of a step was dropped.
    #[error("step {step}: none of {samples} samples was graded; the first: {fault}")]
    NoneGraded {
        /// The step, from 1; 0 before the first.
        step: usize,
        /// Samples of the step.
        samples: usize,
        /// Why the first one was not.
        fault: Fault,
    },
    /// The grader failed after the run was asked to stop: whatever told the run told the grader too.
    #[error("stopped while step {step} was graded")]
    Stopped {
        /// The step, from 1.
        step: usize,
    },
}

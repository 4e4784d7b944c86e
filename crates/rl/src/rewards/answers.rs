//! From the answers of an outside grader to the rewards of samples: an answer counts only where it is known whose it is.

use serde_json::Value;

use super::{Fault, Grades, Outage, excerpt};

/// The key by which an answer names its sample.
const SAMPLE: &str = "sample";

/// The grades of `samples` completions from the answers to them, in the order in which they came, at most one a sample.
///
/// Answers that all name their samples may come in any order and may leave some out, as where the conversation broke
/// off; others are their samples' by their order alone, which is known only where there are as many as samples and the
/// conversation came to its end. A name that is given must be right.
pub(super) fn settle(
    answers: &[Result<Value, Fault>],
    samples: usize,
    end: Result<(), Outage>,
) -> Result<Grades, Outage> {
    let name = |answer: &Result<Value, Fault>| answer.as_ref().ok()?.get(SAMPLE).cloned();
    if !answers.is_empty() && answers.iter().all(|answer| name(answer).is_some()) {
        return by_name(answers.iter().flatten(), samples, end);
    }
    end?;
    if answers.len() < samples {
        return Err(Outage::TooFew { answered: answers.len(), samples });
    }
    let graded = answers.iter().enumerate().map(|(due, answer)| match (name(answer), answer) {
        (Some(named), _) if named.as_u64() != Some(due as u64) => {
            Err(Outage::WrongSample { number: due + 1, named: excerpt(&named.to_string()), due })
        }
        (_, Ok(value)) => Ok(reward(value)),
        (_, Err(fault)) => Ok(Err(fault.clone())),
    });
    graded.collect()
}

fn by_name<'a>(
    answers: impl Iterator<Item = &'a Value>,
    samples: usize,
    end: Result<(), Outage>,
) -> Result<Grades, Outage> {
    let mut grades = vec![None; samples];
    let mut answered = 0;
    for (index, answer) in answers.enumerate() {
        let (number, named) = (index + 1, &answer[SAMPLE]);
        let sample = named.as_u64().and_then(|n| usize::try_from(n).ok());
        let Some((sample, grade)) = sample.and_then(|n| Some((n, grades.get_mut(n)?))) else {
            let named = excerpt(&named.to_string());
            return Err(Outage::UnknownSample { number, named, last: samples.saturating_sub(1) });
        };
        if grade.replace(reward(answer)).is_some() {
            return Err(Outage::Twice { number, sample });
        }
        answered = number;
    }
    if answered == samples {
        end?;
        return Ok(grades.into_iter().flatten().collect());
    }
    let why = end.err().unwrap_or(Outage::TooFew { answered, samples });
    let unanswered = || Err(Fault::Unanswered { why: why.clone() });
    Ok(grades.into_iter().map(|grade| grade.unwrap_or_else(unanswered)).collect())
}

/// The reward in an answer: a number, or an object with one as `reward`.
fn reward(answer: &Value) -> Result<f64, Fault> {
    let number = answer.get("reward").unwrap_or(answer);
    match number.as_f64() {
        Some(reward) if reward.is_finite() => Ok(reward),
        _ => Err(Fault::NotANumber { found: excerpt(&number.to_string()) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answers(values: &[Value]) -> Vec<Result<Value, Fault>> {
        values.iter().cloned().map(Ok).collect()
    }

    fn broken() -> Outage {
        Outage::TimedOut { limit_s: 1.0, answered: 1, samples: 3 }
    }

    #[test]
    fn only_finite_numbers_are_rewards() {
        assert_eq!(reward(&json!(0.5)).unwrap(), 0.5);
        assert_eq!(reward(&json!({"reward": -1, "why": "x"})).unwrap(), -1.0);
        for wrong in [json!(null), json!("1"), json!({"reward": "NaN"}), json!([1]), json!({})] {
            assert!(matches!(reward(&wrong), Err(Fault::NotANumber { .. })), "{wrong}");
        }
    }

    #[test]
    fn answers_in_order_are_trusted_where_there_is_one_a_sample_and_an_end() {
        let three = answers(&[json!(1), json!({"reward": 2, "sample": 1}), json!("x")]);
        let grades = settle(&three, 3, Ok(())).unwrap();
        assert_eq!(grades[..2], [Ok(1.0), Ok(2.0)]);
        assert!(matches!(grades[2], Err(Fault::NotANumber { .. })));
        let few = settle(&three, 4, Ok(())).unwrap_err();
        assert_eq!(few, Outage::TooFew { answered: 3, samples: 4 });
        assert_eq!(settle(&three, 3, Err(broken())), Err(broken()));
    }

    #[test]
    fn a_name_that_is_given_is_right_or_nothing_is_trusted() {
        let shifted = answers(&[json!(1), json!({"reward": 2, "sample": 2}), json!(3)]);
        let outage = settle(&shifted, 3, Ok(())).unwrap_err();
        assert_eq!(outage, Outage::WrongSample { number: 2, named: "2".into(), due: 1 });
        let all = |samples: [Value; 2]| {
            let named = samples.map(|sample| json!({"reward": 1, "sample": sample}));
            settle(&answers(&named), 2, Ok(())).unwrap_err()
        };
        assert_eq!(all([json!(0), json!(0)]), Outage::Twice { number: 2, sample: 0 });
        for unknown in [json!(2), json!(-1), json!("0"), json!(null)] {
            let outage = all([json!(1), unknown.clone()]);
            assert!(
                matches!(outage, Outage::UnknownSample { number: 2, last: 1, .. }),
                "{unknown}"
            );
        }
    }

    #[test]
    fn named_answers_come_in_any_order_and_survive_what_is_missing() {
        let named = |sample: usize| json!({"reward": sample as f64 + 0.5, "sample": sample});
        let all = answers(&[named(2), named(0), named(1)]);
        assert_eq!(settle(&all, 3, Ok(())).unwrap(), [Ok(0.5), Ok(1.5), Ok(2.5)]);
        assert_eq!(settle(&all, 3, Err(broken())), Err(broken()), "it ended badly all the same");
        let grades = settle(&answers(&[named(2)]), 3, Err(broken())).unwrap();
        assert_eq!(grades[2], Ok(2.5));
        assert_eq!(grades[0], Err(Fault::Unanswered { why: broken() }));
        let grades = settle(&answers(&[named(1)]), 2, Ok(())).unwrap();
        let why = Outage::TooFew { answered: 1, samples: 2 };
        assert_eq!(grades, [Err(Fault::Unanswered { why }), Ok(1.5)]);
    }
}

//! Log-probs of training against those that coefficients were made of, byte by byte.

/// The first token that differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct First {
    pub(crate) sample: usize,
    pub(crate) token: usize,
    /// In training; NaN where training has none.
    pub(crate) found: f32,
    pub(crate) expected: f32,
}

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Compared {
    /// Values compared.
    pub(crate) values: usize,
    /// Bytes of them that differ.
    pub(crate) differing_bytes: usize,
    pub(crate) first: Option<First>,
    /// Least and greatest `e^(found − expected)`; both 1 where nothing was compared.
    pub(crate) ratio: [f64; 2],
}

impl Compared {
    /// Nothing yet.
    pub(crate) fn new() -> Compared {
        Compared { values: 0, differing_bytes: 0, first: None, ratio: [1.0; 2] }
    }

    /// Takes in the values of the samples that took part, a list a sample. A value that is missing differs in all of its
    /// bytes.
    pub(crate) fn add(&mut self, found: &[Vec<f32>], expected: &[Vec<f32>], took_part: &[bool]) {
        for (sample, expected) in expected.iter().enumerate().filter(|(i, _)| took_part[*i]) {
            for (token, &expected) in expected.iter().enumerate() {
                let found = found.get(sample).and_then(|list| list.get(token));
                let (found, differing) = match found {
                    Some(&found) => (found, differing_bytes(found, expected)),
                    None => (f32::NAN, size_of::<f32>()),
                };
                self.values += 1;
                self.differing_bytes += differing;
                if differing > 0 {
                    self.first.get_or_insert(First { sample, token, found, expected });
                }
                let ratio = f64::from(canon::exp(found - expected));
                self.ratio = [self.ratio[0].min(ratio), self.ratio[1].max(ratio)];
            }
        }
    }
}

fn differing_bytes(a: f32, b: f32) -> usize {
    a.to_le_bytes().into_iter().zip(b.to_le_bytes()).filter(|(a, b)| a != b).count()
}

/// Bytes in which two lists differ; lists of other lengths differ in all.
pub(crate) fn differing_bytes_of(found: &[f32], stored: &[f32]) -> usize {
    if found.len() != stored.len() {
        return size_of::<f32>() * found.len().max(stored.len());
    }
    found.iter().zip(stored).map(|(&a, &b)| differing_bytes(a, b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(found: &[Vec<f32>], expected: &[Vec<f32>], took_part: &[bool]) -> Compared {
        let mut compared = Compared::new();
        compared.add(found, expected, took_part);
        compared
    }

    #[test]
    fn what_is_the_same_differs_nowhere_and_has_ratio_one() {
        let lists = [vec![-0.5, -1.5], vec![], vec![-3.0]];
        let found = compared(&lists, &lists, &[true; 3]);
        assert_eq!((found.values, found.differing_bytes, found.first), (3, 0, None));
        assert_eq!(found.ratio, [1.0; 2]);
    }

    #[test]
    fn one_bit_is_one_byte_and_its_token_is_named() {
        let expected = [vec![-0.5, -1.5], vec![-3.0, -2.0]];
        let mut found = expected.clone();
        found[1][0] = f32::from_bits(found[1][0].to_bits() ^ 1);
        let seen = compared(&found, &expected, &[true; 2]);
        assert_eq!((seen.values, seen.differing_bytes), (4, 1));
        let first = seen.first.unwrap();
        assert_eq!((first.sample, first.token, first.expected), (1, 0, -3.0));
        assert!(seen.ratio != [1.0; 2], "{seen:?}");
    }

    #[test]
    fn a_value_that_is_missing_differs_unless_its_sample_took_no_part() {
        let expected = [vec![-0.5], vec![-3.0, -2.0]];
        for found in [vec![vec![-0.5], vec![-3.0]], vec![vec![-0.5]]] {
            let seen = compared(&found, &expected, &[true; 2]);
            assert!(seen.differing_bytes >= 4 && seen.first.unwrap().sample == 1, "{seen:?}");
            assert_eq!(compared(&found, &expected, &[true, false]).differing_bytes, 0);
        }
    }
}

//! Stop texts in a stream of pieces.

/// Text that may yet turn out to begin a stop.
#[derive(Debug)]
pub(crate) struct StopText {
    stops: Vec<String>,
    waiting: String,
}

impl StopText {
    pub(crate) fn new(stops: Vec<String>) -> Self {
        StopText { stops, waiting: String::new() }
    }

    /// Takes a piece; gives the text that is certain now, and whether a stop is complete (what precedes it has then been
    /// given, and the rest is dropped).
    pub(crate) fn push(&mut self, piece: &str) -> (String, bool) {
        self.waiting.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|s| self.waiting.find(s.as_str())).min() {
            let certain = self.waiting.drain(..at).collect();
            self.waiting.clear();
            return (certain, true);
        }
        let keep = self.stops.iter().map(|s| overlap(&self.waiting, s)).max().unwrap_or(0);
        (self.waiting.drain(..self.waiting.len() - keep).collect(), false)
    }

    /// What is held back, at the end.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.waiting)
    }
}

/// Length of the longest end of `text` that begins `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    (1..stop.len())
        .rev()
        .filter(|&n| stop.is_char_boundary(n))
        .find(|&n| text.ends_with(&stop[..n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut held = StopText::new(stops.iter().map(|s| s.to_string()).collect());
        let mut out = String::new();
        let stopped = pieces.iter().any(|piece| {
            let (text, stopped) = held.push(piece);
            out.push_str(&text);
            stopped
        });
        out.push_str(&held.finish());
        (out, stopped)
    }

    #[test]
    fn a_stop_across_pieces_is_found_and_not_given() {
        assert_eq!(run(&["END"], &["a E", "N", "D b"]), ("a ".into(), true));
        assert_eq!(run(&["END"], &["a E", "N", "x"]), ("a ENx".into(), false));
        assert_eq!(run(&["zz", "b"], &["ab", "zz"]), ("a".into(), true));
        assert_eq!(run(&["é!"], &["café", "?"]), ("café?".into(), false));
    }
}

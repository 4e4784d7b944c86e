//! Samples that are too long, made shorter.

use serde_json::Value;

/// What becomes of a sample longer than `max_length`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooLong {
    /// An error that names it.
    #[default]
    Refuse,
    /// It is left out and counted.
    Drop,
    /// Its end is kept, after its BOS if it has one. The first token after the cut is not learnt, since what it follows
    /// is gone.
    Left,
    /// The oldest exchanges go, each a user's message with all that follows up to the next; system messages and tools
    /// stay. What cannot be shortened so (the last exchange alone is too long, or it is no conversation) is left out and
    /// counted.
    Middle,
}

impl TooLong {
    /// The rule's name in a cache key.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TooLong::Refuse => "refuse",
            TooLong::Drop => "drop",
            TooLong::Left => "left",
            TooLong::Middle => "middle",
        }
    }
}

/// The last `limit` tokens, of which the first is BOS if the whole begins with it.
pub(crate) fn left(whole: &text::Encoded, bos: Option<u32>, limit: usize) -> text::Encoded {
    let begins = bos.filter(|bos| whole.ids.first() == Some(bos) && limit > 1);
    let kept = limit - usize::from(begins.is_some());
    let from = whole.ids.len().saturating_sub(kept);
    let mut supervised = whole.supervised[from..].to_vec();
    if let Some(first) = supervised.first_mut() {
        *first = false;
    }
    text::Encoded {
        ids: begins.into_iter().chain(whole.ids[from..].iter().copied()).collect(),
        supervised: begins.map(|_| false).into_iter().chain(supervised).collect(),
    }
}

/// A conversation cut into exchanges.
pub(crate) struct Exchanges<'a> {
    messages: &'a [Value],
    /// The exchange of each message; none for system messages, which always stay.
    of: Vec<Option<usize>>,
    count: usize,
}

impl<'a> Exchanges<'a> {
    /// An exchange begins with a user's message that follows none of the user's.
    pub(crate) fn of(messages: &'a [Value]) -> Exchanges<'a> {
        let role = |message: &Value| message.get("role").and_then(Value::as_str).map(str::to_owned);
        let mut count = 0;
        let mut before = None;
        let mut of = Vec::with_capacity(messages.len());
        for message in messages {
            let role = role(message);
            if role.as_deref() == Some("system") {
                of.push(None);
                continue;
            }
            let begins = role.as_deref() == Some("user") && before.as_deref() != Some("user");
            if begins || count == 0 {
                count += 1;
            }
            of.push(Some(count - 1));
            before = role;
        }
        Exchanges { messages, of, count }
    }

    /// Exchanges that there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The messages without the oldest `gone` exchanges.
    pub(crate) fn without(&self, gone: usize) -> Vec<Value> {
        let stays = |exchange: &Option<usize>| exchange.is_none_or(|exchange| exchange >= gone);
        let pairs = self.messages.iter().zip(&self.of).filter(|(_, exchange)| stays(exchange));
        pairs.map(|(message, _)| message.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn encoded(ids: &[u32]) -> text::Encoded {
        text::Encoded { ids: ids.to_vec(), supervised: vec![true; ids.len()] }
    }

    #[test]
    fn left_keeps_the_end_and_the_first_bos() {
        let whole = encoded(&[1, 2, 3, 4, 5]);
        let cut = left(&whole, Some(9), 3);
        assert_eq!((cut.ids, cut.supervised), (vec![3, 4, 5], vec![false, true, true]));
        let cut = left(&whole, Some(1), 3);
        assert_eq!((cut.ids, cut.supervised), (vec![1, 4, 5], vec![false, false, true]));
        let cut = left(&whole, Some(1), 1);
        assert_eq!((cut.ids, cut.supervised), (vec![5], vec![false]));
    }

    #[test]
    fn exchanges_begin_with_the_user_and_system_messages_stay() {
        let messages: Vec<Value> = [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
            "user",
            "system",
            "assistant",
        ]
        .iter()
        .enumerate()
        .map(|(index, role)| json!({"role": role, "content": index.to_string()}))
        .collect();
        let exchanges = Exchanges::of(&messages);
        assert_eq!(exchanges.count(), 2);
        let left = |gone| -> Vec<String> {
            let kept = exchanges.without(gone);
            kept.iter().map(|m| m["content"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(left(0).len(), 9);
        assert_eq!(left(1), ["0", "5", "6", "7", "8"]);
        let greeting = [json!({"role": "assistant"}), json!({"role": "user"})];
        assert_eq!(Exchanges::of(&greeting).count(), 2);
        assert_eq!(Exchanges::of(&[]).count(), 0);
    }
}

//! Pages of the cache: who holds them, and which hold the beginning of what.
//!
//! A full page is known by the tokens in it and the page before it, so that any sequence that begins with the same
//! tokens may read it. Pages that nobody holds any more stay known until their room is wanted, longest unused first.

use program::ops::PAGE;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A known beginning of a sequence: the tokens of some full pages. Numbers are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Beginning(u64);

impl Beginning {
    /// No tokens.
    pub(crate) const EMPTY: Beginning = Beginning(0);
}

/// What a full page holds: the tokens after a beginning.
type Contents = (Beginning, Box<[u32]>);

#[derive(Clone, Debug, Default)]
struct Page {
    holders: usize,
    /// Set while the page can be found by its contents.
    contents: Option<Contents>,
    /// When it was last let go.
    stamp: u64,
}

/// How the pages of a cache are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Held by sequences.
    pub held: usize,
    /// Held by nobody, but known: given to whoever begins alike, or taken when pages run out.
    pub known: usize,
    /// Free.
    pub free: usize,
}

/// The pages of one cache.
#[derive(Debug)]
pub(crate) struct Pages {
    pages: Vec<Page>,
    free: BTreeSet<u32>,
    known: HashMap<Contents, (u32, Beginning)>,
    /// Known pages that nobody holds, by when they were let go.
    unused: BTreeMap<u64, u32>,
    clock: u64,
    beginnings: u64,
}

impl Pages {
    pub(crate) fn new(count: usize) -> Self {
        Pages {
            pages: vec![Page::default(); count],
            free: (0..count as u32).collect(),
            known: HashMap::new(),
            unused: BTreeMap::new(),
            clock: 0,
            beginnings: 0,
        }
    }

    /// Pages that [`Pages::take`] can give.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.unused.len()
    }

    pub(crate) fn counts(&self) -> PageCounts {
        let (known, free) = (self.unused.len(), self.free.len());
        PageCounts { held: self.pages.len() - known - free, known, free }
    }

    /// A page for one sequence: a free one, else the known one that has gone unused longest.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let page = match self.free.pop_first() {
            Some(page) => page,
            None => {
                let (_, page) = self.unused.pop_first()?;
                self.forget(page);
                page
            }
        };
        self.pages[page as usize].holders = 1;
        Some(page)
    }

    /// The page that holds `tokens` after a beginning, if one is known; the caller holds it from now on.
    pub(crate) fn find(&mut self, after: Beginning, tokens: &[u32]) -> Option<(u32, Beginning)> {
        let &(page, beginning) = self.known.get(&(after, tokens.into()))?;
        let entry = &mut self.pages[page as usize];
        if entry.holders == 0 {
            self.unused.remove(&entry.stamp);
        }
        entry.holders += 1;
        Some((page, beginning))
    }

    /// Makes a held page known by its contents, and gives the beginning that ends with it. Where another page is known
    /// by the same, that one stays.
    pub(crate) fn publish(&mut self, after: Beginning, tokens: &[u32], page: u32) -> Beginning {
        assert_eq!(tokens.len(), PAGE, "only full pages are shared");
        let contents: Contents = (after, tokens.into());
        if let Some(&(_, beginning)) = self.known.get(&contents) {
            return beginning;
        }
        self.beginnings += 1;
        let beginning = Beginning(self.beginnings);
        self.known.insert(contents.clone(), (page, beginning));
        self.pages[page as usize].contents = Some(contents);
        beginning
    }

    /// Lets a sequence's pages go, the last one first: what many begin with is taken last.
    pub(crate) fn release(&mut self, pages: &[u32]) {
        for &page in pages.iter().rev() {
            let entry = &mut self.pages[page as usize];
            assert!(entry.holders > 0, "page {page} is held by the one who lets it go");
            entry.holders -= 1;
            if entry.holders > 0 {
                continue;
            }
            if entry.contents.is_some() {
                self.clock += 1;
                entry.stamp = self.clock;
                self.unused.insert(self.clock, page);
            } else {
                self.free.insert(page);
            }
        }
    }

    /// Forgets what every page holds: the keys and values are no longer those of the weights.
    pub(crate) fn forget_all(&mut self) {
        self.known.clear();
        for entry in &mut self.pages {
            entry.contents = None;
        }
        self.free.extend(std::mem::take(&mut self.unused).into_values());
    }

    fn forget(&mut self, page: u32) {
        if let Some(contents) = self.pages[page as usize].contents.take() {
            self.known.remove(&contents);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(first: u32) -> Vec<u32> {
        (first..first + PAGE as u32).collect()
    }

    #[test]
    fn a_known_page_is_found_by_its_tokens_and_what_precedes_them() {
        let mut pages = Pages::new(4);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let first = pages.publish(Beginning::EMPTY, &tokens(0), a);
        pages.publish(first, &tokens(7), b);
        assert_eq!(pages.find(Beginning::EMPTY, &tokens(0)), Some((a, first)));
        assert_eq!(pages.find(Beginning::EMPTY, &tokens(7)), None, "the same tokens elsewhere");
        assert_eq!(pages.counts(), PageCounts { held: 2, known: 0, free: 2 });
        pages.release(&[a, b]);
        assert_eq!(pages.counts(), PageCounts { held: 1, known: 1, free: 2 }, "a is held twice");
        pages.release(&[a]);
        assert_eq!(pages.counts(), PageCounts { held: 0, known: 2, free: 2 });
    }

    #[test]
    fn unused_pages_are_taken_after_free_ones_and_ends_before_beginnings() {
        let mut pages = Pages::new(3);
        let held = [pages.take().unwrap(), pages.take().unwrap()];
        let first = pages.publish(Beginning::EMPTY, &tokens(0), held[0]);
        pages.publish(first, &tokens(1), held[1]);
        pages.release(&held);
        assert_eq!(pages.available(), 3);
        assert_eq!(pages.take(), Some(2), "the free page");
        assert_eq!(pages.take(), Some(held[1]), "the end");
        assert!(pages.find(first, &tokens(1)).is_none(), "it is forgotten");
        assert!(pages.find(Beginning::EMPTY, &tokens(0)).is_some());
        assert_eq!(pages.take(), None, "all are held");
    }

    #[test]
    fn two_pages_of_the_same_contents_are_known_as_one() {
        let mut pages = Pages::new(2);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let first = pages.publish(Beginning::EMPTY, &tokens(0), a);
        assert_eq!(pages.publish(Beginning::EMPTY, &tokens(0), b), first);
        pages.release(&[b]);
        assert_eq!(pages.counts().free, 1, "the second was never known");
    }

    #[test]
    fn forgotten_pages_are_free_and_held_ones_stay_held() {
        let mut pages = Pages::new(2);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let first = pages.publish(Beginning::EMPTY, &tokens(0), a);
        pages.publish(first, &tokens(1), b);
        pages.release(&[b]);
        pages.forget_all();
        assert_eq!(pages.counts(), PageCounts { held: 1, known: 0, free: 1 });
        assert!(pages.find(Beginning::EMPTY, &tokens(0)).is_none());
        pages.release(&[a]);
        assert_eq!(pages.counts().free, 2);
    }
}

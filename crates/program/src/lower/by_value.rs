//! A table with a place for every value of a graph.

use crate::graph::{Graph, ValueId};
use std::ops::Index;

/// At most one `T` a value.
pub(super) struct ByValue<T> {
    places: Vec<Option<T>>,
}

impl<T> ByValue<T> {
    pub(super) fn new(graph: &Graph) -> Self {
        ByValue { places: graph.values.iter().map(|_| None).collect() }
    }

    pub(super) fn get(&self, value: ValueId) -> Option<&T> {
        self.places[value.0 as usize].as_ref()
    }

    pub(super) fn contains_key(&self, value: ValueId) -> bool {
        self.get(value).is_some()
    }

    pub(super) fn insert(&mut self, value: ValueId, item: T) {
        self.places[value.0 as usize] = Some(item);
    }

    pub(super) fn remove(&mut self, value: ValueId) {
        self.places[value.0 as usize] = None;
    }

    /// Empties the places of values for which `keep` of their index is false.
    pub(super) fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        for (index, place) in self.places.iter_mut().enumerate() {
            if !keep(index) {
                *place = None;
            }
        }
    }
}

impl<T> Index<ValueId> for ByValue<T> {
    type Output = T;

    fn index(&self, value: ValueId) -> &T {
        self.get(value).expect("the value has been made")
    }
}

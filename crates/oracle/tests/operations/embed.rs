use crate::rig::Rig;
use arena::ExecError;
use program::ops::{Embed, EmbedBackward};

#[test]
fn a_share_gives_its_rows_and_zeros_for_others() {
    let mut rig = Rig::new();
    let (ids, table) = (rig.words(1, &[3, 1, 2]), rig.halves(2, &[1., 2., 3., 4.]));
    let out = rig.out(3, 2);
    let op = Embed { ids, table, first: 2, words: 2, out, scale: 2.0 };
    assert_eq!(rig.run(op).floats(out), [6., 8., 0., 0., 2., 4.]);
}

#[test]
fn an_id_past_the_vocabulary_is_refused() {
    // Of three rows two are words, so the vocabulary ends at 4.
    let mut rig = Rig::new();
    let (ids, table) = (rig.words(1, &[3, 4]), rig.floats(1, &[1., 2., 0.]));
    let out = rig.out(2, 1);
    let error = rig.error(Embed { ids, table, first: 2, words: 2, out, scale: 1.0 });
    assert_eq!(error, ExecError::TokenOutsideVocabulary { row: 1, id: 4, vocab: 4 });
    // Without padding too, when no other rank brings rows.
    let mut rig = Rig::new();
    let (ids, table) = (rig.words(1, &[1, 2]), rig.floats(1, &[1., 2.]));
    let out = rig.out(2, 1);
    let error = rig.error(Embed { ids, table, first: 0, words: 2, out, scale: 1.0 });
    assert_eq!(error, ExecError::TokenOutsideVocabulary { row: 1, id: 2, vocab: 2 });
    let mut rig = Rig::new();
    let (ids, dout) = (rig.words(1, &[9]), rig.floats(1, &[1.]));
    let dtable = rig.floats(1, &[0., 0.]);
    let (first, words, scale, zero) = (0, 1, 1.0, true);
    let error = rig.error(EmbedBackward { ids, dout, dtable, first, words, scale, zero });
    assert_eq!(error, ExecError::TokenOutsideVocabulary { row: 0, id: 9, vocab: 1 });
}

#[test]
fn gradients_are_added_token_after_token() {
    const BIG: f32 = 16_777_216.0;
    for (zero, wanted) in [(true, [BIG, 4.0]), (false, [BIG, 6.0])] {
        let mut rig = Rig::new();
        // Row 0 takes BIG/2·2, then 0.5·2 twice, one at a time: both are lost.
        let ids = rig.words(1, &[2, 2, 7, 2, 3]);
        let dout = rig.floats(1, &[BIG / 2.0, 0.5, 9.0, 0.5, 2.0]);
        let dtable = rig.floats(1, &[0.0, 2.0]);
        let op = EmbedBackward { ids, dout, dtable, first: 2, words: 2, scale: 2.0, zero };
        assert_eq!(rig.run(op).floats(dtable), wanted);
    }
}

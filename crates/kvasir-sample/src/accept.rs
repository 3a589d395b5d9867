//! Verification of speculative drafts: which draft tokens the target accepts, for chains and token
//! trees.
//!
//! *Coupled* acceptance: a draft is accepted exactly if it equals the token that the target samples
//! at its position with the same noise. So the output with drafts equals the output without, at any
//! temperature. Under [rejection sampling](crate::Acceptance::Rejection) the target's token at a draft's
//! position is made to equal the draft where it is accepted, so that the same comparison finds it.

/// Accepts the longest prefix of a draft chain that matches; appends the accepted nodes, numbered
/// from 1.
///
/// `sampled[0]` is the target's token before the first draft, and `sampled[i]` the one after draft
/// `i - 1`.
pub fn chain(drafts: &[u32], sampled: &[u32], accepted: &mut Vec<u32>) {
    let right = drafts.iter().zip(sampled).take_while(|(draft, token)| draft == token).count();
    accepted.extend(1..=right as u32);
}

/// Accepts the path of a draft tree that matches; appends the accepted nodes from the root down.
///
/// Node `i + 1` is `drafts[i]` with parent `parents[i]`, and node 0 is the newest committed token.
/// `sampled[n]` is the target's token after node `n`. Of siblings with the same token the first is
/// taken.
pub fn tree(drafts: &[u32], parents: &[i32], sampled: &[u32], accepted: &mut Vec<u32>) {
    let mut node = 0;
    while let Some(token) = sampled.get(node) {
        let child =
            drafts.iter().zip(parents).position(|(draft, parent)| *parent == node as i32 && draft == token);
        // A child has a higher number than its parent, so the walk terminates even on malformed
        // parents.
        match child.map(|i| i + 1).filter(|child| *child > node) {
            Some(child) => {
                accepted.push(child as u32);
                node = child;
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_chain(drafts: &[u32], sampled: &[u32]) -> Vec<u32> {
        let mut accepted = Vec::new();
        chain(drafts, sampled, &mut accepted);
        accepted
    }

    fn of_tree(drafts: &[u32], parents: &[i32], sampled: &[u32]) -> Vec<u32> {
        let mut accepted = Vec::new();
        tree(drafts, parents, sampled, &mut accepted);
        accepted
    }

    #[test]
    fn a_chain_is_accepted_up_to_the_first_wrong_draft() {
        assert_eq!(of_chain(&[5, 6, 7], &[5, 6, 9, 7]), [1, 2]);
        assert_eq!(of_chain(&[5], &[4, 5]), [0u32; 0]);
        assert_eq!(of_chain(&[5, 6], &[5, 6, 1]), [1, 2]);
        assert_eq!(of_chain(&[], &[5]), [0u32; 0]);
    }

    #[test]
    fn a_tree_is_walked_from_the_newest_token() {
        // Tree: 0 -> 1 (5), 2 (6); 1 -> 3 (7); 2 -> 4 (7), 5 (8)
        let (drafts, parents) = ([5, 6, 7, 7, 8], [0, 0, 1, 2, 2]);
        assert_eq!(of_tree(&drafts, &parents, &[6, 0, 8, 0, 0, 3]), [2, 5]);
        assert_eq!(of_tree(&drafts, &parents, &[5, 7, 0, 3, 0, 0]), [1, 3]);
        assert_eq!(of_tree(&drafts, &parents, &[9, 7, 0, 3, 0, 0]), [0u32; 0]);
    }

    #[test]
    fn a_chain_is_a_tree_of_single_children() {
        let drafts = [4, 4, 2, 9];
        for sampled in [[4, 4, 2, 9, 1], [4, 4, 4, 9, 1], [4, 2, 2, 9, 1], [1, 4, 2, 9, 1]] {
            assert_eq!(of_chain(&drafts, &sampled), of_tree(&drafts, &[0, 1, 2, 3], &sampled));
        }
    }
}

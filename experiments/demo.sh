#!/usr/bin/env bash
# The main job from beginning to end: train the built-in corpus, translate, look at attention.
#   bash experiments/demo.sh [FOLDER-OF-PYTHON]       DEMO_STEPS=60 makes it short (and the model bad).
# At full length it fails unless the lecture's four sentences are translated exactly.
set -euo pipefail
bin=${1:+$1/}
run=${DEMO_RUN:-runs/phrasebook}
start=$SECONDS
short=()
if [ -n "${DEMO_STEPS:-}" ]; then
  short=(--training.steps "$DEMO_STEPS" --optimizer.schedule.warmup-steps $((DEMO_STEPS / 4)))
fi
"${bin}transformer-jax" train phrasebook --output "$run" --overwrite "${short[@]}"

echo
echo "The four sentences of the lecture:"
pairs=$("${bin}python" -c 'from transformer_jax.data.corpora.phrasebook import L1_PAIRS
for pair in L1_PAIRS: print(*pair, sep="\t")')
translated=$(cut -f 1 <<<"$pairs" | "${bin}transformer-jax" translate "$run")
wrong=()
while IFS=$'\t' read -r source reference text; do
  echo "$source  ->  $text"
  [ "$text" = "$reference" ] || wrong+=("$source  ->  $text  (should be: $reference)")
done < <(paste <(echo "$pairs") <(echo "$translated"))

echo
"${bin}transformer-jax" attention "$run" "Em Dezembro, Lucas irá viajar ao Rio." --output "$run/attention.html"
"${bin}transformer-jax" explore "$run" --text "Em Dezembro, Lucas irá viajar ao Rio." --output "$run/explore.html"
echo "pictures: $run/attention.html, $run/attention.png, $run/curves.png; the model in a browser: $run/explore.html"
echo "the demo took $((SECONDS - start)) s"
if [ -z "${DEMO_STEPS:-}" ] && [ ${#wrong[@]} -gt 0 ]; then
  printf 'demo: FAILED: %s of the four sentences are not translated as in the lecture\n' ${#wrong[@]} >&2
  printf '  %s\n' "${wrong[@]}" >&2
  exit 1
fi

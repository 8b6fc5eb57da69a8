#!/usr/bin/env bash
# The main job from beginning to end: train the built-in corpus, translate, look at attention.
#   bash experiments/demo.sh [FOLDER-OF-PYTHON]       DEMO_STEPS=60 makes it short (and the model bad).
set -euo pipefail
bin=${1:+$1/}
run=${DEMO_RUN:-runs/phrasebook}
start=$SECONDS
short=()
if [ -n "${DEMO_STEPS:-}" ]; then
  short=(--training.steps "$DEMO_STEPS" --optimizer.schedule.warm-up $((DEMO_STEPS / 4)))
fi
"${bin}python" -m experiments.seq2seq train phrasebook --output "$run" --overwrite "${short[@]}"

echo
echo "The four sentences of the lecture:"
sentences='Ela gosta de viajar.
Lucas mora no Rio.
Lucas irá viajar ao Rio em Dezembro.
Em Dezembro, Lucas irá viajar ao Rio.'
paste -d '|' <(echo "$sentences") <(echo "$sentences" | "${bin}transformer-jax" translate "$run") | sed 's/|/  ->  /'

echo
"${bin}transformer-jax" attention "$run" "Em Dezembro, Lucas irá viajar ao Rio." --output "$run/attention.html"
echo "pictures: $run/attention.html, $run/attention.png, $run/curves.png"
echo "the demo took $((SECONDS - start)) s"

#!/usr/bin/env bash
# Makes the TPU slice {type} unless it is there, and runs the command on all its machines. Run it
# again after a preemption: the run goes on from its newest checkpoint.
set -euo pipefail
slice=(gcloud compute tpus tpu-vm)
where=({name} --zone={zone})
state=$("${slice[@]}" describe "${where[@]}" --format='value(state)' 2> /dev/null || true)
if [ "$state" != "" ] && [ "$state" != READY ]; then
  "${slice[@]}" delete "${where[@]}" --quiet
  state=""
fi
if [ "$state" = "" ]; then
  "${slice[@]}" create "${where[@]}" --accelerator-type={type} --version={version}
fi
script=$(cat << 'END_OF_SCRIPT'
set -euo pipefail
python3 -m venv ~/venv && ~/venv/bin/pip install --quiet {install}
export PATH=~/venv/bin:$PATH
{mount}
exec {command}
END_OF_SCRIPT
)
"${slice[@]}" ssh "${where[@]}" --worker=all --command="bash -c $(printf %q "$script")"

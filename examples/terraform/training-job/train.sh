# Stands in for a training program: it takes steps, writes each down, and after a restart goes on behind the last.
set -e
checkpoint=/checkpoints/rank-$JOB_COMPLETION_INDEX
step=$(cat "$checkpoint" 2>/dev/null || echo 0)
echo "rank $JOB_COMPLETION_INDEX on $HOSTNAME starts after step $step with $(ls /dev | grep -cE '^nvidia[0-9]+$') GPUs and $(ls /dev/nvidia-caps-imex-channels)"
while [ "$step" -lt "$STEPS" ]; do
  step=$((step + 1))
  echo "$step" > "$checkpoint.new"
  mv "$checkpoint.new" "$checkpoint" # whole or not at all
done
echo "rank $JOB_COMPLETION_INDEX is done at step $step"
